"""Plans of live changes as pages show them: what was where before, and is where after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HOW = {
    "untouched": "stays as it is",
    "stateless": "built anew, it keeps no state",
    "state": "built anew, its state is carried over",
    "reconfigure": "its processes stay and are told their new ranks",
}


@dataclass(frozen=True, slots=True)
class PoolBox:
    """A pool in a map: its processes per node, and the groups on it with their world sizes."""

    name: str
    process_on_nodes: tuple[int, ...]
    groups: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class GroupFate:
    """What becomes of a group, in words."""

    group: str
    from_pool: str
    to_pool: str
    size_before: int
    size_after: int
    how: str


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan as a map before, a map after, and a line per group."""

    before: tuple[PoolBox, ...]
    after: tuple[PoolBox, ...]
    groups: tuple[GroupFate, ...]
    prepared: bool
    why_not_prepared: str
    drains: tuple[str, ...]
    lost: tuple[str, ...]
    stand_still_ms: float


def plan_view(text: str) -> PlanView | None:
    """Return the plan that an operation kept as JSON text, or None when it kept none that can be read."""
    try:
        plan = json.loads(text) if text else None
        return _view(plan) if isinstance(plan, Mapping) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def how_in_words(how: str) -> str:
    """Return what a plan does with a group's state, for people."""
    return _HOW.get(how, how)


def _view(plan: Mapping[str, object]) -> PlanView:
    pools = _items(plan["pools"])
    moves = _items(plan["groups"])
    fates = tuple(
        GroupFate(
            str(move["group"]),
            str(move["from_pool"]),
            str(move["to_pool"]),
            _whole(move["world_size_before"]),
            _whole(move["world_size_after"]),
            how_in_words(str(move["how"])),
        )
        for move in moves
    )
    return PlanView(
        before=tuple(
            PoolBox(str(pool["pool"]), _sizes(pool["before"]), _on(fates, str(pool["pool"]), before=True))
            for pool in pools
            if pool["before"]
        ),
        after=tuple(
            PoolBox(str(pool["pool"]), _sizes(pool["after"]), _on(fates, str(pool["pool"]), before=False))
            for pool in pools
            if pool["after"]
        ),
        groups=fates,
        prepared=bool(plan.get("prepared")),
        why_not_prepared=str(plan.get("why_not_prepared") or ""),
        drains=tuple(map(str, _list(plan.get("drains")))),
        lost=tuple(map(str, _list(plan.get("lost")))),
        stand_still_ms=float(str(plan.get("stand_still_s") or 0.0)) * 1000,
    )


def _on(fates: tuple[GroupFate, ...], pool: str, *, before: bool) -> tuple[tuple[str, int], ...]:
    if before:
        return tuple((fate.group, fate.size_before) for fate in fates if fate.from_pool == pool)
    return tuple((fate.group, fate.size_after) for fate in fates if fate.to_pool == pool)


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _items(value: object) -> list[Mapping[str, object]]:
    return [item for item in _list(value) if isinstance(item, Mapping)]


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(_whole(n) for n in _list(value))


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
