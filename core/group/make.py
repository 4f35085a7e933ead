"""Making a group's state: workers started on a pool, found by name or handle, or a role of a group that is up."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from core import runtime as runtimes
from core.cluster import ActorHandle
from core.data.shares import Uneven
from core.group.bind import Method, registered_methods
from core.group.class_args import RayClassWithInitArgs
from core.group.detached import FoundSlots, find_workers, slots_of_found
from core.group.group_state import GroupSettings, GroupState
from core.group.start import StartSettings, start_workers
from core.group.worker_set import WorkerSet
from core.health.policy import HealthOptions
from core.pool import RayResourcePool
from core.worker.fused import Role

_taken: set[str] = {"_state", "_wanted"}


def take_names(names: Iterable[str]) -> None:
    """Set which names every group has: a worker's method of such a name is refused."""
    _taken.update(names)


def taken_names() -> frozenset[str]:
    """Return the names that every group has."""
    return frozenset(_taken)


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """The arguments of a group's constructor; ``start`` checks those for the start of its workers."""

    class_args: RayClassWithInitArgs
    name_prefix: str | None
    health: HealthOptions
    uneven: Uneven | None
    start: Callable[..., StartSettings]

    @property
    def name(self) -> str:
        """Return the name that the group is to have in the record."""
        wanted = self.name_prefix or self.class_args.user_class.__name__
        return wanted.rstrip("_") or wanted

    @property
    def methods(self) -> tuple[Method, ...]:
        """Return the methods that the group offers.

        Raises:
            RegistrationError: One would hide something of every group's.
        """
        return registered_methods(self.class_args.user_class, taken_names())

    def settings(self, unique: str, start: StartSettings) -> GroupSettings:
        """Return the settings of the group under its own name."""
        prefix = self.name_prefix or f"{unique}_{uuid.uuid4().hex[:6]}_"
        return GroupSettings(unique, prefix, self.class_args, start, self.uneven)


Made = tuple[GroupState, tuple[Method, ...]]
"""A group's state with its workers, and the methods that it offers."""


def start_group(resource_pool: RayResourcePool | Sequence[int], wanted: WantedGroup, start: StartSettings) -> Made:
    """Start a group's workers on a pool, or on one for this group alone."""
    methods = wanted.methods
    own = None if isinstance(resource_pool, RayResourcePool) else start.pool_of(resource_pool)
    pool = resource_pool.present if isinstance(resource_pool, RayResourcePool) else own
    assert pool is not None
    state = GroupState(wanted.settings(pool.runtime.claim_group_name(wanted.name), start), pool, wanted.health)
    state.owns_pool = own is not None
    try:
        workers = _started(state)
    except BaseException:
        if own is not None:
            own.close()
        raise
    state.begin(workers, methods)
    return state, methods


def find_group(
    names: Sequence[str] | None, handles: Sequence[ActorHandle] | None, wanted: WantedGroup, start: StartSettings
) -> Made:
    """Lead workers that exist as a group. Groups of one class over the same workers are one group in the record."""
    methods = wanted.methods
    found = find_workers(runtimes.current(), names, handles, start.timeout_s)
    pool = slots_of_found(wanted.class_args.user_class, wanted.name, found)
    return on_found_slots(pool, found.workers, wanted.settings(pool.group, start), wanted.health, methods), methods


def on_found_slots(
    pool: FoundSlots, workers: WorkerSet, settings: GroupSettings, health: HealthOptions, methods: Sequence[Method]
) -> GroupState:
    """Return a group on workers that are up and that others have started."""
    state = GroupState(settings, pool, health)
    pool.admit(state)
    state.begin(replace(workers, placement=pool.placement_now), methods)
    return state


def view_of_role(parent: GroupState, role: str, made_of: Role) -> Made:
    """Return the group of one of the roles that share the processes of ``parent``."""
    settings = parent.settings
    class_args = RayClassWithInitArgs(made_of.user_class, *made_of.args, **made_of.kwargs)
    name = parent.runtime.claim_group_name(role.rstrip("_") or role)
    state = GroupState(
        replace(settings, name=name, class_args=class_args, role=role), parent.pool, parent.health, parent=parent
    )
    methods = registered_methods(made_of.user_class, taken_names(), role)
    state.begin(parent.started, methods)
    return state, methods


def _started(state: GroupState) -> WorkerSet:
    """Start the first workers of a group on its pool."""
    settings, pool, runtime = state.settings, state.pool, state.runtime
    placement = settings.start.place(pool)
    pool.admit(state)
    request = settings.start.request(state.name, settings.name_prefix, settings.class_args, pool, placement)
    try:
        return start_workers(runtime.cluster, runtime.clock, request)
    except BaseException:
        pool.dismiss(state.name)
        raise
