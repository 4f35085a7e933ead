"""Steps added up from a real file, beside the same by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from app.store import read_steps
from app.store.reader import Reader
from benchmarks.synth import make
from web.calls import CallFilter

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Yield a run of 1,000 calls in 25 steps."""
    path = tmp_path_factory.mktemp("steps") / "run.db"
    make(path, 1_000, 2)
    with contextlib.closing(Reader(path, deadline_s=10)) as reader:
        yield reader


def test_the_sums_and_percentiles_are_those_of_the_calls(reader: Reader) -> None:
    found = reader.steps_between(3, 6)
    rows = [row for row in reader.calls(1000, None, CallFilter()).items if 3 <= row.step <= 6]
    assert (found.n_calls, found.is_cut) == (len(rows), False)
    assert len(found.methods) == 4
    for one in found.methods:
        own = [row for row in rows if row.method == one.method]
        took = [row.duration_ms for row in own]
        assert (one.p50_ms, one.p95_ms) == pytest.approx((np.percentile(took, 50), np.percentile(took, 95)))
        assert one.took_ms == pytest.approx(took[::-1])
        assert (one.pools, one.generations, one.n_ranks) == (("train",), (0,), (2,))
        details = [reader.call(row.id) for row in own]
        assert one.wait_ms == pytest.approx(sum(detail.wait_ms for detail in details if detail))
        assert (one.n_calls, one.rows, one.bytes_out) == (
            len(own),
            sum(row.rows for row in own),
            sum(row.bytes_out for row in own),
        )


def test_of_very_many_calls_the_first_are_added_up_and_it_is_said(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_steps, "MOST_CALLS", 100)
    found = reader.steps_between(1, 25)
    assert (found.n_calls, found.is_cut, sum(one.n_calls for one in found.methods)) == (100, True, 100)
    assert reader.steps_between(900, 901).methods == ()
