"""The tree of core's errors: as its docstring draws it, and whole after a trip between processes."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import weakref
from dataclasses import fields
from typing import Any

import pytest

from core import errors
from core.errors import (
    DeathKind,
    MissingKeyError,
    PodiumError,
    UsageError,
    WorkerDiedError,
    WorkerMethodError,
    traceback_text,
)

TREE: list[type[PodiumError]] = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PodiumError)
]


def sample(kind: type[PodiumError]) -> PodiumError:
    """Make an error with a value of its own in every field."""
    values: dict[str, Any] = {}
    for number, one in enumerate(fields(kind)):
        default = one.default if one.name != "message" else ""
        if one.name == "cause":
            values[one.name] = ValueError("the user's own", 3)
        elif default is None:
            values[one.name] = True
        elif isinstance(default, str):
            values[one.name] = f"{one.name} of it"
        elif isinstance(default, DeathKind):
            values[one.name] = DeathKind.OWNER_DIED
        elif isinstance(default, tuple):
            values[one.name] = (("CPU", float(number)),) if "ranks" not in one.name else (1, number)
        else:
            values[one.name] = type(default)(number + 1)
    return kind(**values)


def drawn() -> dict[str, tuple[str, list[str]]]:
    """Read the docstring's tree: each name with its parent's and with the bases beside it."""
    found: dict[str, tuple[str, list[str]]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^(\s*[│├└─ ]*)([A-Z]\w+Error)(?: \(([^)]*)\))?", line)
        if match is None:
            continue
        indent, name, beside = len(match[1]), match[2], match[3]
        above = [(depth, parent) for depth, parent in above if depth < indent]
        found[name] = (above[-1][1] if above else "", [base.strip() for base in (beside or "").split(",") if base])
        above.append((indent, name))
    return found


def test_the_docstring_draws_every_class_and_no_other() -> None:
    assert set(drawn()) == {kind.__name__ for kind in TREE}


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_each_class_has_the_bases_that_the_docstring_says(kind: type[PodiumError]) -> None:
    parent, beside = drawn()[kind.__name__]
    bases = {base.__name__ for base in kind.__bases__}
    expected = {parent or "Exception", *beside}
    if kind is MissingKeyError:
        expected = {"UsageError", "KeyError"}
    assert bases == expected


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_pickles_with_its_type_and_fields(kind: type[PodiumError]) -> None:
    error = sample(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        for one in fields(kind):
            before, after = getattr(error, one.name), getattr(again, one.name)
            if isinstance(before, BaseException):
                assert (type(after), after.args) == (type(before), before.args)
            else:
                assert after == before, one.name
        assert str(again) == str(error) == error.message
        assert again.args == (error.message,)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_can_be_raised_caught_as_its_root_and_hashed(kind: type[PodiumError]) -> None:
    error = sample(kind)
    with pytest.raises(PodiumError) as caught:
        raise error
    assert caught.value is error
    assert len({error, sample(kind)}) == 2
    assert error != sample(kind)


def test_code_for_verl_catches_usage_errors_as_assertion_errors() -> None:
    assert issubclass(UsageError, AssertionError)
    assert issubclass(UsageError, ValueError)


def test_a_missing_key_reads_as_prose_and_not_as_a_quoted_key() -> None:
    assert str(MissingKeyError("no column 'a'; there are b, c", key="a", available=("b", "c"))).startswith("no column")


def test_a_workers_error_chains_the_users_exception_also_after_a_trip() -> None:
    again = pickle.loads(pickle.dumps(WorkerMethodError("it raised", cause=KeyError("a"), cause_type="KeyError")))
    assert isinstance(again.__cause__, KeyError)


def test_the_traceback_is_the_interpreters_own() -> None:
    try:
        raise WorkerDiedError("gone", rank=3)
    except WorkerDiedError as error:
        text = traceback_text(error)
    assert text.startswith("Traceback (most recent call last)")
    assert text.endswith("WorkerDiedError: gone")


@pytest.mark.parametrize("is_another", [True, False])
def test_an_error_that_is_raised_detached_goes_with_its_last_holder_without_the_collector(is_another: bool) -> None:
    """A cycle through a frame would keep the arguments and results of a failed call."""

    class Held:
        """Stands for an argument."""

    def call(held: Held) -> None:
        try:
            raise WorkerDiedError("the cluster's own", rank=1)
        except WorkerDiedError as error:
            errors.raise_detached(WorkerDiedError("with its rank", rank=2) if is_another else error)

    gc.collect()
    gc.disable()
    try:
        held, ranks = Held(), list[int]()
        left = weakref.ref(held)
        try:
            call(held)
        except WorkerDiedError as error:
            ranks.append(error.rank)
        del held
        assert (left(), ranks) == (None, [2 if is_another else 1])
    finally:
        gc.enable()
