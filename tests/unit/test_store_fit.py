"""Answers hold what their types say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.store.codes import unpack_processes, unpack_sizes
from app.store.fit import check_fits
from tests.app_doubles import MemorySource, some_call, some_run
from web.calls import CallPage


def test_answers_of_the_right_types_pass() -> None:
    source = MemorySource()
    answers = (source.overview(), source.timeline(None, None, 100), source.call(3), source.workers(), None, 5)
    for answer in answers:
        check_fits(answer)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (some_run(pid="forty"), "pid of a Run is 'forty'"),
        (some_run(name=b"x"), "name of a Run"),
        (some_run(n_calls=1.5), "n_calls of a Run"),
        ((some_run(), some_run(host=None)), "host of a Run is 'None'"),
        (CallPage((some_call(1), replace(some_call(2), rows="many")), None), "rows of a CallRow is 'many'"),  # type: ignore[arg-type]
        (replace(MemorySource().timeline(None, None, 100), methods=("a", 3)), "methods of a Timeline"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_type_is_named(answer: object, named: str) -> None:
    check_fits(some_run())
    with pytest.raises(TypeError) as caught:
        check_fits(answer)
    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["four", "1,,2", "9" * 30, "-1", "65537", "1," * 70_000 + "1"])
def test_no_pool_is_larger_than_a_map_can_draw(text: str) -> None:
    assert unpack_processes("4,4") == (4, 4)
    with pytest.raises(ValueError, match=r"."):
        unpack_processes(text)


def test_a_shard_is_not_larger_than_a_number_of_64_bits() -> None:
    assert unpack_sizes("4,4,3") == (4, 4, 3)
    with pytest.raises(ValueError, match="out of range"):
        unpack_sizes("9" * 100)
