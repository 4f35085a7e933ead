"""Answers about a run hold what their types say: SQLite keeps a text in a column of numbers, and pages add it up."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

# JSON as we write it carries no larger whole numbers, and no column holds them.
_LEAST, _MOST = -(2**63), 2**63 - 1
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


def _check_object(one: Any) -> None:
    kind: type[Hashable] = type(one)
    for name, fits in _fields(kind):
        value = getattr(one, name)
        if not fits(value):
            raise TypeError(f"{name} of a {kind.__name__} is {str(value)[:60]!r}")


@cache
def _fields(kind: type) -> tuple[tuple[str, Callable[[object], bool]], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _fits(hints[field.name])) for field in fields(kind))


@cache
def _fits(hint: object) -> Callable[[object], bool]:
    """Return what tells whether a value is of a type: numbers, texts, dataclasses, and sequences of any of them."""
    kinds = _plain_kinds(hint)
    if kinds is not None:
        return lambda value: value.__class__ in kinds and _is_small(value)
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
        return set(map(type, values)) <= kinds and (int not in kinds or all(map(_is_small, values)))

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


def _is_small(value: object) -> bool:
    return not isinstance(value, int) or _LEAST <= value <= _MOST
