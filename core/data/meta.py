"""Joining what parts of a batch say about themselves.

The policy, key by key, for the meta of ``concat`` and of ranks that return their parts:

* ``metrics`` of all parts become a dict of lists in the order of the parts. A part may hold a dict, a list of dicts,
  None or nothing. A part without a metric adds nothing to that list; ``PerPart.parts`` says which parts did, so values
  are never taken for another part's. Metrics that have this form already and are equal on all parts stay as they are.
* A key that is equal on all parts that have it stays as it is: NaN equals NaN, arrays and tensors by value.
* A number that differs (a timing; numpy scalars and tensors of one element without dimensions too) is kept per part, as
  a ``PerPart`` list with one value for each part that has it. A None among numbers stays None.
* Dicts that differ are merged key by key by these same rules.
* Everything else that differs is a setting that contradicts itself, an error: text, flags, lists, arrays, tensors.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from core.data.equality import values_equal
from core.errors import MergeConflictError

METRICS = "metrics"


class PerPart(list[Any]):
    """Values of one key by part; ``parts[i]`` is the number of the part that ``self[i]`` came from."""

    def __init__(self, values: Sequence[Any] = (), parts: Sequence[int] = ()) -> None:
        """Keep values and the numbers of their parts, as many of the one as of the other."""
        super().__init__(values)
        self.parts = tuple(parts)


def merge_meta(metas: Sequence[Mapping[str, Any]], keep_metrics: bool = False) -> dict[str, Any]:
    """Join the meta of all parts by the policy above; ``keep_metrics``: these are parts of one batch, cut up before.

    Raises:
        MergeConflictError: A setting differs; the message begins "Conflicting values for meta_info key".
    """
    merged: dict[str, Any] = {}
    for key in _keys(metas):
        held = [(number, meta[key]) for number, meta in enumerate(metas) if key in meta]
        if key == METRICS and not (keep_metrics and len(held) == len(metas)):
            merged[key] = _merge_metrics(held)
        else:
            merged[key] = _merge_values(held, key)
    return merged


def _keys(metas: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for meta in metas for key in meta))


def _merge_values(held: Sequence[tuple[int, Any]], key: str) -> Any:
    values = [value for _, value in held]
    if all(values_equal(values[0], value) for value in values[1:]):
        return values[0]
    if all(isinstance(value, dict) for value in values):
        return {
            name: _merge_values([(number, value[name]) for number, value in held if name in value], f"{key}.{name}")
            for name in _keys(values)
        }
    if all(_is_measured(value) or value is None for value in values):
        return PerPart(values, [number for number, _ in held])
    shown = "; ".join(f"part {number}: {_shorten(value)}" for number, value in held[:4])
    top = key.split(".", 1)[0]
    inner = "" if top == key else f" (at {key!r})"
    raise MergeConflictError(f"Conflicting values for meta_info key '{top}'{inner}: {shown}", key=key)


def _is_measured(value: object) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return False
    if isinstance(value, (numbers.Number, PerPart)):
        return True
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype is not torch.bool
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iufc"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _merge_metrics(held: Sequence[tuple[int, Any]]) -> Any:
    values = [value for _, value in held]
    if all(_is_merged(value) for value in values) and all(values_equal(values[0], value) for value in values[1:]):
        return values[0]
    merged: dict[str, PerPart] = {}
    for number, value in held:
        for entry in _entries(value, number):
            for name, metric in entry.items():
                row = merged.setdefault(name, PerPart())
                row.append(metric)
                row.parts = (*row.parts, number)
    return merged


def _is_merged(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(metric, list) for metric in value.values())


def _entries(value: Any, number: int) -> list[dict[str, Any]]:
    entries = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
    for entry in entries:
        if not isinstance(entry, dict):
            raise MergeConflictError(
                f"meta_info key 'metrics' of part {number} holds a {type(entry).__name__}; "
                f"metrics are a dict, a list of dicts or None",
                key=METRICS,
            )
    return list(entries)
