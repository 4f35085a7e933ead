"""Answers about a run hold what their types say: SQLite keeps a text in a column of numbers, and pages add it up."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

_KINDS: dict[object, frozenset[type]] = {
    int: frozenset({int, bool}),
    float: frozenset({int, float, bool}),
    str: frozenset({str}),
    bool: frozenset({bool}),
    types.NoneType: frozenset({types.NoneType}),
}


def check_fits(answer: object) -> None:
    """Make sure that every field of a dataclass, or of each in a tuple, holds what its type says.

    Raises:
        TypeError: One does not; it is named.
    """
    for one in answer if isinstance(answer, tuple) else (answer,):
        if is_dataclass(one):
            _check_object(one)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a dataclass is checked. ``values`` returns its numbers and texts, whose classes are ``seen`` when they fit.

    Of thousands of rows nearly all have the classes of the first, which are then looked up at once.
    """

    names: tuple[str, ...]
    values: Callable[[object], tuple[object, ...]]
    kinds: tuple[frozenset[type], ...]
    rest: tuple[tuple[str, Callable[[object], bool]], ...]
    seen: set[tuple[type, ...]]


def _check_object(one: Any) -> None:
    kind: type[Hashable] = type(one)
    plan = _plan(kind)
    values = plan.values(one)
    classes = tuple(map(type, values))
    if classes not in plan.seen:
        for name, value, kinds in zip(plan.names, values, plan.kinds, strict=True):
            if type(value) not in kinds:
                raise _misfit(kind, name, value)
        plan.seen.add(classes)
    for name, fits in plan.rest:
        value = getattr(one, name)
        if not fits(value):
            raise _misfit(kind, name, value)


def _misfit(kind: type, name: str, value: object) -> TypeError:
    return TypeError(f"{name} of a {kind.__name__} is {str(value)[:60]!r}")


@cache
def _plan(kind: type) -> _Plan:
    hints = typing.get_type_hints(kind)
    plain = {field.name: kinds for field in fields(kind) if (kinds := _plain_kinds(hints[field.name])) is not None}
    names = tuple(plain)
    rest = tuple((field.name, _fits(hints[field.name])) for field in fields(kind) if field.name not in plain)
    # Of one name, or of none, attrgetter would return no tuple.
    read = attrgetter(*names) if len(names) > 1 else lambda one: tuple(getattr(one, name) for name in names)
    return _Plan(names, read, tuple(plain.values()), rest, set())


@cache
def _fits(hint: object) -> Callable[[object], bool]:
    """Return a check whether a value is of a type: numbers, texts, dataclasses, and sequences of any of them."""
    kinds = _plain_kinds(hint)
    if kinds is not None:
        return lambda value: value.__class__ in kinds
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        choices = [_fits(one) for one in inner]
        return lambda value: any(choice(value) for choice in choices)
    if origin is tuple and inner[-1] is not Ellipsis:
        return _parts([_fits(one) for one in inner])
    if origin is not None and issubclass(origin, Sequence):
        return _sequence(inner[0])
    return _object


def _parts(each: Sequence[Callable[[object], bool]]) -> Callable[[object], bool]:
    def fits(values: object) -> bool:
        whole = isinstance(values, tuple) and len(values) == len(each)
        return whole and all(fits(value) for fits, value in zip(each, values, strict=True))  # type: ignore[call-overload]

    return fits


def _sequence(inner: object) -> Callable[[object], bool]:
    kinds, each = _plain_kinds(inner), _fits(inner)

    def fits(values: object) -> bool:
        if not isinstance(values, Sequence):
            return False
        if kinds is None:
            return all(map(each, values))
        # Lists of thousands of numbers: once over their types, and no call for each.
        return set(map(type, values)) <= kinds

    return fits


def _object(value: object) -> bool:
    if is_dataclass(value):
        _check_object(value)
    return True


def _plain_kinds(hint: object) -> frozenset[type] | None:
    """Return the classes of a number, a text, nothing, or one of several such; None of anything else."""
    if hint in _KINDS:
        return _KINDS[hint]
    if typing.get_origin(hint) not in {typing.Union, types.UnionType}:
        return None
    kinds = [_KINDS.get(one) for one in typing.get_args(hint)]
    return None if None in kinds else frozenset().union(*(kind for kind in kinds if kind is not None))
