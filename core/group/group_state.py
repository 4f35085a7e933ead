"""What a worker group is besides its workers: live changes and restarts work on this, the driver's object on top of it.

The object that the driver holds (``RayWorkerGroup``) stays the same whatever workers the group has. Everything that
changes with them is here, behind five members: ``settings``, ``workers_for``, ``family``, ``replace`` and ``close``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from core.cluster import ActorHandle
from core.data.shares import Uneven
from core.errors import PoolClosedError
from core.finalizers import Finalizer
from core.group.announce import announce_end, announce_group, announce_replaced, end_group
from core.group.bind import Method
from core.group.call_tracker import CallTracker
from core.group.class_args import RayClassWithInitArgs
from core.group.deaths import Deaths
from core.group.detached import FoundSlots
from core.group.held_workers import leave_to_holders
from core.group.live_workers import LiveWorkers, PendingCalls
from core.group.start import StartSettings
from core.group.worker_set import WorkerSet
from core.health.monitor import monitor_of
from core.health.policy import HealthOptions
from core.pool import Gate, RayResourcePool


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a group was made with. ``role`` is set for a group that is a view of one role of a fused worker.

    ``borrowed`` says that the workers are another process's, which alone ends them.
    """

    name: str
    name_prefix: str
    class_args: RayClassWithInitArgs
    start: StartSettings
    uneven: Uneven | None
    role: str = ""
    borrowed: bool = False

    @property
    def detached(self) -> bool:
        """Whether the workers outlive the driver."""
        return self.start.detached


class Restarts:
    """How often a group's restart was tried, its lock, and the state that was saved for one that is not done yet.

    Every try counts, also one whose workers did not come up: a constructor that fails each time must come to an end.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.lock = threading.Lock()
        self.n_tried = 0
        self.saved: tuple[object, object] | None = None


class GroupState:
    """A group's settings and, once they are up and until it is closed, its workers."""

    def __init__(
        self, settings: GroupSettings, pool: RayResourcePool, health: HealthOptions, parent: GroupState | None = None
    ) -> None:
        """Start without workers; ``parent`` is the group whose processes a view shares."""
        self.settings = settings
        self.name = settings.name
        self.runtime = pool.runtime
        self.pool = pool
        self.health = health
        self.live: LiveWorkers | None = None
        self.last: WorkerSet | None = None
        self.owns_pool = False
        self.restarts = Restarts()
        self.dispatch_info: dict[str, list[int]] = {}
        self.collect_info: dict[str, list[bool]] = {}
        self._parent = parent
        self._views: weakref.WeakSet[GroupState] = weakref.WeakSet()
        self._pending = PendingCalls()
        self._since = ""
        self._n_replacements = 0
        self._finalizer: Finalizer | None = None
        self._gave_handles = False
        # What stands above is imported now: a thread that reports a death has no time for it.
        _ = self.runtime.parts
        if parent is not None:
            parent.add_view(self)

    def workers_for(self, method: str) -> LiveWorkers:
        """Return the workers that a call of ``method`` made now runs on.

        Raises:
            PoolClosedError: The group is closed.
        """
        live = self.live
        if live is None:
            raise PoolClosedError(f"group {self.name} is closed, {method} cannot be called", state="closed")
        return live

    @property
    def started(self) -> WorkerSet:
        """Return the workers that came up last, also after they were closed.

        Raises:
            PoolClosedError: None have come up yet.
        """
        if self.last is None:
            raise PoolClosedError(f"group {self.name} has no workers yet", state="starting")
        return self.last

    @property
    def root(self) -> GroupState:
        """Return the group that started the processes: this one, or the one that it is a view of."""
        return self if self._parent is None else self._parent.root

    def family(self) -> Iterator[GroupState]:
        """Yield this group and the views of its roles."""
        yield self
        for view in list(self._views):
            yield from view.family()

    @property
    def views(self) -> tuple[GroupState, ...]:
        """Return the views of roles that are not closed."""
        return tuple(view for view in list(self._views) if view.live is not None)

    def add_view(self, view: GroupState) -> None:
        """Have a view of one of the roles get new workers with this group."""
        self._views.add(view)

    def next_name_prefix(self) -> str:
        """Return a start for new workers' names: those of the workers there are stay taken while these live."""
        self._n_replacements += 1
        return f"{self.settings.name_prefix.rstrip('_')}_r{self._n_replacements}_"

    def begin(self, workers: WorkerSet, methods: Sequence[Method]) -> None:
        """Take the first workers on, and record the group."""
        self._take_on(workers)
        pool = self.pool
        if self._parent is None and isinstance(pool, FoundSlots):
            if pool.is_announced:
                return
            pool.is_announced = True
        announce_group(self.name, pool, self.settings.class_args.user_class, workers, methods)

    def replace(self, workers: WorkerSet, pool: RayResourcePool | None, reason: str) -> None:
        """Have other workers from the next call on, in ``pool`` if that is another; end those that do not stay.

        The views of roles get them too. No call may be in flight, or it ends with its workers. The group's place on
        the slots is the caller's to settle.

        Raises:
            PoolClosedError: The group is closed.
        """
        before = self.workers_for("replace")
        for state in self.family():
            state.switch_to(workers, pool or state.pool, reason)
        self.end_workers(before.workers.actors, workers.actors)

    def switch_to(self, workers: WorkerSet, pool: RayResourcePool, reason: str) -> None:
        """Have other workers from the next call on, and record that; of one group alone, see ``replace``."""
        before = self.live
        if before is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        announce_end(self.runtime, self.name, before.world_size, before.deaths.dead, reason)
        self.pool = pool
        if before.world_size != workers.world_size:
            at = datetime.fromtimestamp(self.runtime.clock.now_ns() / 1e9, UTC).strftime("%H:%M:%S UTC")
            self._since = f"{self.name} has {workers.world_size} ranks since {at}, it had {before.world_size}: {reason}"
        self._take_on(workers)
        announce_replaced(self.name, pool, workers, reason)

    def retire(self, reason: str) -> None:
        """End the workers before others come that need their room; calls must be kept off meanwhile."""
        for state in self.family():
            if state.live is not None:
                announce_end(state.runtime, state.name, state.live.world_size, state.live.deaths.dead, reason)
        self.end_workers(self.live.workers.actors if self.live is not None else ())

    def end_workers(self, actors: Sequence[ActorHandle], but: Sequence[ActorHandle] = ()) -> None:
        """End workers after they have cleaned up; at once while ranks are in a call, which may never end."""
        limit_s = 0.0 if self._pending.any_out else self.runtime.health_settings.close_timeout_s
        ending = [actor for actor in actors if not any(actor is staying for staying in but)]
        self.runtime.cluster.retire(ending, limit_s)

    def watch(self, health: HealthOptions) -> None:
        """Do as ``health`` says about dead workers and late calls from now on."""
        self.health = health
        if self.live is not None:
            self.live.deaths.policy = health.policy
            monitor_of(self.runtime).watch(self.live, health.ping_every_s)

    def give_handles(self) -> list[ActorHandle]:
        """Return the workers' handles; from now on a worker outlives this group's collection while one is held."""
        live = self.live
        if live is None:
            return []
        if self._parent is not None:
            self._parent.give_handles()
        elif not self._gave_handles:
            self._gave_handles = True
            self._end_when_collected(live)
        return list(live.workers.actors)

    def close(self) -> None:
        """End the workers, detached ones too; may be called twice. A pool made for this group alone is closed too."""
        live = self.live
        if live is None:
            return
        own_actors = live.workers.actors if self._parent is None and not self.settings.borrowed else ()
        self._leave()
        if self._finalizer is not None:
            self._finalizer.detach()
        end_group(self.runtime, self.name, self.pool.name, live.world_size, own_actors, live.deaths.dead)
        if self.owns_pool and not self.pool.groups:
            self.pool.close()

    def release(self) -> None:
        """Do what is due when the driver is done: ``close``, or leave detached workers running."""
        if not self.settings.detached:
            self.close()
        elif self.live is not None:
            self._leave()
            if self._finalizer is not None:
                self._finalizer()

    def _leave(self) -> None:
        """Take no more calls and give up the place on the pool."""
        self.live = None
        if self._parent is None:
            self.pool.dismiss(self.name)
        self._parent = None

    def _take_on(self, workers: WorkerSet) -> None:
        """Have ``workers`` from the next call on."""
        settings, pool = self.settings, self.pool
        self.last = workers
        self.dispatch_info.clear()
        self.collect_info.clear()
        monitor = monitor_of(self.runtime)
        live = LiveWorkers(
            runtime=self.runtime,
            group=self.name,
            role=settings.role or settings.class_args.user_class.__name__,
            pool=pool.name,
            gate=pool.gate,
            workers=workers,
            pending=self._pending,
            deaths=Deaths(self.health.policy, monitor.investigate, self._first_death()),
            drained=partial(_drained, self._pending, pool.gate),
            uneven=settings.uneven,
            call_timeout_s=self.health.call_timeout_s,
            since=self._since,
        )
        monitor.watch(live, self.health.ping_every_s)
        self._end_when_collected(live)
        # Last: calls on other threads take what is set from here on.
        self.live = live

    def _end_when_collected(self, live: LiveWorkers) -> None:
        """Have the group ended when it is collected; its workers too, unless who was given handles holds them."""
        settings, pool, workers = self.settings, self.pool, live.workers
        if self._parent is None and isinstance(pool, FoundSlots) and pool.is_in_use:
            self._finalizer = pool.ending
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        own_actors: tuple[ActorHandle, ...] = ()
        if self._parent is None and not settings.detached:
            own_actors = workers.actors
        if own_actors and self._gave_handles:
            dead = live.deaths.dead
            self._finalizer = Finalizer(self, leave_to_holders, self.runtime, pool, self.name, own_actors, dead)
            return
        reason = "the driver is done, the workers live on" if settings.detached else "the group was closed"
        is_found = self._parent is None and isinstance(pool, FoundSlots)
        self._finalizer = Finalizer(
            pool if is_found else self,
            end_group,
            self.runtime,
            self.name,
            pool.name,
            workers.world_size,
            own_actors,
            live.deaths.dead,
            reason,
        )
        if self._parent is None and isinstance(pool, FoundSlots):
            pool.ending = self._finalizer

    def _first_death(self) -> Callable[[], None]:
        """Return what is done when the first worker of a set dies; it holds the group weakly."""
        group = weakref.ref(self)

        def first_death() -> None:
            state = group()
            if state is not None:
                state.runtime.parts.on_death(state)

        return first_death


def _drained(pending: PendingCalls, gate: Gate, tracker: CallTracker) -> None:
    """Record that every rank has answered a call."""
    pending.remove(tracker)
    gate.leave()
