"""A group that travels: pickled in one process, it arrives in another as a group on the same workers.

The workers stay their owner's: there calls can be made and are recorded by that process, and ``close`` ends nothing.
Live changes are the owner's too: when it has given the group other workers, send the group again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from core import runtime as runtimes
from core.errors import UsageError
from core.group.base import WorkerGroup
from core.group.bind import BoundMethod, registered_methods
from core.group.clock import ClockAlignment
from core.group.detached import Found, slots_of_found
from core.group.group_state import GroupSettings, GroupState
from core.group.make import on_found_slots, taken_names
from core.group.worker_set import WorkerSet
from core.health.policy import DeathPolicy, HealthOptions
from core.runtime import OnDeath


@dataclass(frozen=True, slots=True)
class SentGroup:
    """A group as it travels. ``roles`` are those that ``fuse`` made attributes; ``extra`` what a subclass keeps."""

    settings: GroupSettings
    pool: str
    workers: WorkerSet
    call_timeout_s: float | None
    roles: tuple[str, ...]
    extra: Mapping[str, Any]


def sent_group(state: GroupState, attributes: Mapping[str, Any]) -> SentGroup:
    """Return what travels of a group.

    Raises:
        UsageError: It is closed.
    """
    if state.live is None:
        raise UsageError(f"group {state.name} is closed and cannot be sent to another process")
    settings, workers = state.settings, state.live.workers
    own = {name: value for name, value in attributes.items() if name not in taken_names()}
    return SentGroup(
        settings=replace(settings, start=replace(settings.start, detached=True)),
        pool=state.pool.name,
        # Clocks are those of the process that calls, placement groups those of the owner.
        workers=replace(workers, clocks=(), placement=replace(workers.placement, native=())),
        call_timeout_s=state.health.call_timeout_s,
        roles=tuple(name for name, value in own.items() if isinstance(value, WorkerGroup)),
        extra={name: value for name, value in own.items() if not isinstance(value, (WorkerGroup, BoundMethod))},
    )


def arrive(kind: type[Any], sent: SentGroup) -> Any:
    """Return the group in this process."""
    runtime = runtimes.current()
    for actor in sent.workers.actors:
        runtime.cluster.adopt_actor(actor)
    # Whether the workers are replaced is the owner's to decide, and so is whether a death ends a process.
    health = HealthOptions(DeathPolicy(OnDeath.RAISE), sent.call_timeout_s)
    methods = registered_methods(sent.settings.class_args.user_class, taken_names(), sent.settings.role)
    workers = replace(sent.workers, clocks=tuple(ClockAlignment() for _ in sent.workers.actors))
    pool = slots_of_found(sent.settings.class_args.user_class, sent.settings.name, Found(runtime, sent.pool, workers))
    settings = replace(sent.settings, name=pool.group, borrowed=True)
    group = object.__new__(kind)
    group.__dict__.update(sent.extra)
    group._state = on_found_slots(pool, workers, settings, health, methods)
    group._offer(methods)
    if sent.roles:
        group.fuse(sent.roles)
    return group
