"""The made-up run and the questions that are timed on it."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import pytest

from app.store.check import check
from app.store.reader import Reader
from benchmarks.queries import questions, time_all
from benchmarks.synth import events, make

pytestmark = pytest.mark.integration

NOT_QUESTIONS = {"open", "close", "rest", "path"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of 2,000 calls on 4 ranks."""
    path = tmp_path_factory.mktemp("synth") / "run.db"
    make(path, 2_000, 4)
    return path


def test_every_question_of_the_reader_is_timed(path: Path) -> None:
    with contextlib.closing(Reader(path)) as reader:
        asked = {name.split(":")[0] for name in questions(reader)}
        public = {name for name in dir(reader) if not name.startswith("_")} - NOT_QUESTIONS
        assert asked == public
        assert all(0 < one.p50_ms <= one.p95_ms for one in time_all(reader, 2))


def test_the_same_seed_makes_the_same_run_and_another_does_not() -> None:
    first, again, other = (list(events(300, 3, seed)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_the_made_up_run_is_whole_and_its_totals_agree(path: Path) -> None:
    found = check(path)
    assert (found.is_whole, found.n_calls, found.n_spans) == (True, 2_000, 8_000)
    with contextlib.closing(Reader(path)) as reader:
        overview = reader.overview()
        assert sum(method.n_calls for method in overview.methods) == 2_000
        assert [one.n_calls for one in reader.latencies(None, None)] == [500] * 4
        slow = {one.method: one.p50_ms for one in reader.latencies(None, None)}
        assert slow["generate"] > slow["update"] > slow["log_prob"] > slow["save"]


def test_every_question_is_answered_by_a_file_of_an_older_schema_too(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    packed = Path(__file__).parents[1] / "data" / "run-schema-0001.db.gz"
    old.write_bytes(gzip.decompress(packed.read_bytes()))
    with contextlib.closing(Reader(old)) as reader:
        for ask in questions(reader).values():
            ask()
