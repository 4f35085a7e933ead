"""Plans of live changes as pages and REST show them: what was where before, and what is where after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_HOW = {
    "unchanged": "not changed",
    "stateless": "rebuilt without state",
    "state": "rebuilt, state carried over",
    "reconfigure": "processes kept, ranks reassigned",
}
# The record keeps plans under the names on the left.
_FIELDS = {
    "stand_still_s": "downtime_s",
    "drains": "in_flight",
    "lost": "lost_state",
    "why_not_prepared": "not_prepared_reason",
}
_WITHOUT_DOWNTIME = frozenset({"pause", "resume"})


@dataclass(frozen=True, slots=True)
class PoolBox:
    """A pool in a map: its processes per node, and the groups on it with their world sizes."""

    name: str
    process_on_nodes: tuple[int, ...]
    groups: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What a plan does to a group, ``how`` in words."""

    group: str
    from_pool: str
    to_pool: str
    size_before: int
    size_after: int
    how: str
    is_changed: bool


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan as a map before, a map after, and a line per group.

    ``in_flight`` are the calls that it waits for, ``lost_state`` is what would be lost, each in words; ``downtime_ms``
    is the estimate of how long the driver is blocked, 0 where there is none, and ``estimate_from`` says what it is
    estimated from.
    """

    kind: str
    before: tuple[PoolBox, ...]
    after: tuple[PoolBox, ...]
    groups: tuple[GroupChange, ...]
    prepared: bool
    not_prepared_reason: str
    in_flight: tuple[str, ...]
    lost_state: tuple[str, ...]
    downtime_ms: float
    estimate_from: str

    @property
    def moves_slots(self) -> bool:
        """Whether a pool looks different afterwards."""
        return [(box.name, box.process_on_nodes) for box in self.before] != [
            (box.name, box.process_on_nodes) for box in self.after
        ]

    @property
    def has_downtime(self) -> bool:
        """Whether the driver is blocked while it is applied."""
        return self.kind not in _WITHOUT_DOWNTIME


def load_plan(text: str) -> dict[str, Any] | None:
    """Return a plan that was recorded as JSON text, under public names, or None when it is not a JSON object."""
    try:
        plan = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    return public_names(plan) if isinstance(plan, dict) else None


def plan_view(plan: Mapping[str, Any] | None) -> PlanView | None:
    """Return a plan as the pages show it, or None when it is not a plan."""
    try:
        return None if plan is None else _view(plan)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def public_names(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded plan under the names that REST and the pages use."""
    named = {_FIELDS.get(name, name): value for name, value in plan.items()}
    groups = named.get("groups")
    if isinstance(groups, list | tuple):
        named["groups"] = [
            {**group, "how": "unchanged"} if isinstance(group, Mapping) and group.get("how") == "untouched" else group
            for group in groups
        ]
    return named


def _view(plan: Mapping[str, object]) -> PlanView:
    pools = _items(plan["pools"])
    groups = tuple(_group_change(group) for group in _items(plan["groups"]))
    return PlanView(
        kind=str(plan.get("kind") or ""),
        before=tuple(
            PoolBox(str(pool["pool"]), _sizes(pool["before"]), _on(groups, str(pool["pool"]), before=True))
            for pool in pools
            if pool["before"]
        ),
        after=tuple(
            PoolBox(str(pool["pool"]), _sizes(pool["after"]), _on(groups, str(pool["pool"]), before=False))
            for pool in pools
            if pool["after"]
        ),
        groups=groups,
        prepared=bool(plan.get("prepared")),
        not_prepared_reason=str(plan.get("not_prepared_reason") or ""),
        in_flight=tuple(map(str, _list(plan.get("in_flight")))),
        lost_state=tuple(map(str, _list(plan.get("lost_state")))),
        downtime_ms=float(str(plan.get("downtime_s") or 0.0)) * 1000,
        estimate_from=str(plan.get("estimate_from") or ""),
    )


def _group_change(group: Mapping[str, object]) -> GroupChange:
    how, from_pool, to_pool = str(group["how"]), str(group["from_pool"]), str(group["to_pool"])
    return GroupChange(
        str(group["group"]),
        from_pool,
        to_pool,
        _whole(group["world_size_before"]),
        _whole(group["world_size_after"]),
        _HOW.get(how, how),
        is_changed=how != "unchanged" or from_pool != to_pool,
    )


def _on(groups: tuple[GroupChange, ...], pool: str, *, before: bool) -> tuple[tuple[str, int], ...]:
    if before:
        return tuple((group.group, group.size_before) for group in groups if group.from_pool == pool)
    return tuple((group.group, group.size_after) for group in groups if group.to_pool == pool)


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _items(value: object) -> list[Mapping[str, object]]:
    return [item for item in _list(value) if isinstance(item, Mapping)]


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(_whole(n) for n in _list(value))


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value
