"""Carrying out a change: bring up what can be brought up, then, at a safe point, drain, hand over and switch.

Until the switch everything can be taken back: nothing that a group or a pool has is touched before its replacement is
there, but where the old must go to make room; then it is started again, with its state, if the new does not come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from core.cluster import Placement, Ref
from core.cluster.holdings import Holding, SlotKey, slot_keys
from core.control.commands import Move
from core.control.layout import NodeTarget, Target
from core.control.plans import Change, Mode
from core.control.slots import known_slots, put_together, reserve_extras
from core.control.snapshot import take_snapshot
from core.control.staging import StagedChange
from core.errors import CallTimeoutError, PoolClosedError, StateError, WorkerMethodError
from core.group.group_state import GroupState
from core.lifecycle.reconfigure import check_stays, reconfigure, take_back
from core.lifecycle.replace_workers import check_alive, hand_over, prepare, save_state, switch
from core.lifecycle.survivors import without_the_dead
from core.pool import PoolState, RayResourcePool
from core.runtime import Runtime

_log = logging.getLogger("podium.control")
_ROLLBACK_S = 300.0


class ChangeExecutor:
    """One change on its way.

    ``prepare`` may run on any thread that may use the cluster, ``carry_out`` on a driver's own.
    """

    def __init__(self, runtime: Runtime, change: Change, operation_id: str, deadline: float) -> None:
        """Take hold of the pools and groups; ``deadline`` is on the monotonic clock."""
        pools = runtime.pools()
        self.change = change
        self.deadline = deadline
        self.downtime_s = 0.0
        self.blocked_before_s = 0.0
        self.switch_s = 0.0
        self.was_carried_out = False
        self._id = operation_id
        self._pools: dict[str, RayResourcePool] = {name: pools[name] for name in change.pools}
        self._runtime = next(iter(self._pools.values())).runtime
        self._groups = {
            tenant.name: tenant
            for pool in self._pools.values()
            for tenant in pool.tenants
            if isinstance(tenant, GroupState) and tenant.name in change.homes
        }
        self._seen = {name: (pool.placement_if_any, _names(pool)) for name, pool in self._pools.items()}
        self._staged = StagedChange(self._runtime, change, self._pools, self._groups, self._left_s)
        self._states: dict[str, tuple[Ref, ...]] = {}
        self._dead: dict[str, tuple[int, ...]] = {}
        self._reconfigured: list[str] = []
        self._retired = False
        self._switching = False

    @property
    def runtime(self) -> Runtime:
        """Return the runtime of the pools."""
        return self._runtime

    @property
    def pools(self) -> tuple[RayResourcePool, ...]:
        """Return the pools that change."""
        return tuple(self._pools.values())

    def prepare(self, is_cancelled: Callable[[], bool], report: Callable[[str], None]) -> None:
        """Reserve slots and bring up workers as far as the plan's mode allows; nothing is left when that fails.

        Raises:
            PlacementError: The slots were not free in time.
            WorkerStartError: A new worker did not come up.
            CallTimeoutError: They were not up in time, or the start was cancelled.
        """
        if self.change.mode is Mode.RELEASED:
            return
        try:
            self._staged.reserve(report)
            if self.change.mode is Mode.PREPARED:
                self._staged.start(is_cancelled, report)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """End and give back what was brought up and not switched to; may be called twice."""
        self._staged.abandon()

    def carry_out(self, report: Callable[[str], None]) -> None:
        """Drain, hand over and switch; on any failure everything is as it was.

        Raises:
            CallTimeoutError: Calls outlasted the deadline.
            PodiumError: What went wrong; pools that could not be brought back are FAILED and say so.
        """
        began = time.monotonic()
        self.was_carried_out = True
        pools = [self._pools[name] for name in self.change.drained]
        states: dict[str, PoolState] = {}
        try:
            for pool in pools:
                states[pool.name] = pool.gate.shut()
            self._check_unchanged()
            self._drain(pools, report)
            drained = time.monotonic()
            started_s = self._hand_over(report)
            self._switch(states)
            self.switch_s = time.monotonic() - drained - started_s
        except BaseException as error:
            self._roll_back(error, report)
            raise
        finally:
            for pool in pools:
                if pool.state is PoolState.CHANGING:
                    pool.gate.end_change(states[pool.name])
                elif pool.name in states:
                    pool.gate.reopen(states[pool.name])
            self.downtime_s = self.blocked_before_s + time.monotonic() - began

    def _left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _check_unchanged(self) -> None:
        """Refuse a plan that what the driver did meanwhile has made stale."""
        self._check_open()
        for name, pool in self._pools.items():
            if self._seen[name] != (pool.placement_if_any, _names(pool)):
                raise StateError(
                    f"pool {name} had the groups {', '.join(self._seen[name][1]) or 'none'} when this was planned and "
                    f"has {', '.join(_names(pool)) or 'none'} now; ask again",
                    state=pool.state.value,
                )

    def _check_open(self) -> None:
        for name, pool in self._pools.items():
            if pool.state in {PoolState.CLOSED, PoolState.FAILED}:
                raise PoolClosedError(f"pool {name} is {pool.state.value} meanwhile", state=pool.state.value)

    def _drain(self, pools: list[RayResourcePool], report: Callable[[str], None]) -> None:
        for pool in pools:
            if pool.gate.n_in_flight:
                report(f"waiting for {pool.gate.n_in_flight} calls in flight on {pool.name}")
            if not pool.gate.begin_change(self._left_s()):
                calls = take_snapshot(self._runtime).pools[pool.name].in_flight
                raise CallTimeoutError(
                    f"{pool.gate.n_in_flight} calls on {pool.name} were still in flight at the deadline "
                    f"({'; '.join(calls)}); nothing was changed"
                )

    def _hand_over(self, report: Callable[[str], None]) -> float:
        """Move every group's state to its new workers, starting those first if need be; return what that took."""
        for name in sorted(self._staged.staying):
            check_stays(self._groups[name], self._staged.reconfigurations.get(name), self._left_s())
        for name, group in sorted(self._groups.items()):
            if name not in self._staged.staying:
                report(f"saving the state of {name}")
                self._dead[name] = tuple(sorted(group.workers_for("save_state").deaths.dead))
                can_roll_back = self.change.mode is Mode.PREPARED
                self._states[name] = save_state(group, self._left_s(), can_roll_back)
        began = time.monotonic()
        if self.change.mode is not Mode.PREPARED:
            self._make_room(report)
            self._staged.start(lambda: False, report)
        started_s = time.monotonic() - began
        for name, prepared in sorted(self._staged.prepared.items()):
            group = self._groups[name]
            if self.change.mode is Mode.PREPARED:
                check_alive(group, prepared, self._left_s())
            if self._states[name]:
                report(f"handing the state of {name} over")
            try:
                hand_over(group, prepared, self._states[name], self._left_s())
            except WorkerMethodError as error:
                raise without_the_dead(group, self._dead[name], error) from error.__cause__
        for name, change in sorted(self._staged.reconfigurations.items()):
            report(f"reconfiguring {name}")
            self._reconfigured.append(name)
            self._staged.prepared[name] = reconfigure(self._groups[name], change, self._left_s())
        return started_s

    def _make_room(self, report: Callable[[str], None]) -> None:
        """End the old workers, and give back their slots where the new ones need that."""
        ending = sorted(name for name in self._groups if name not in self._staged.staying)
        report(f"ending the old workers of {', '.join(ending) or 'no group'}")
        self._retired = True
        for name, group in self._groups.items():
            if name not in self._staged.staying:
                group.retire(self._reason())
        if self.change.mode is Mode.RELEASED:
            (pool,) = self.pools
            (target,) = self.change.targets
            for name in self._groups:
                pool.dismiss(name)
            self._hold(pool, Target(pool.name, tuple(NodeTarget(entry.keep) for entry in target.entries if entry.keep)))
            self._staged.reserve(report)

    def _hold(self, pool: RayResourcePool, target: Target, extras: tuple[Placement, ...] = ()) -> None:
        """Give a pool other slots without an event, and release those that no pool has any more."""
        placement = put_together(target, known_slots(self._runtime, [pool]), extras)
        holding = Holding(pool.name)
        before = () if pool.holding is None else (pool.holding,)
        released = self._runtime.holdings.exchange(before, {holding: placement})
        pool.hold_slots(placement, holding)
        self._runtime.cluster.release(released)

    def _switch(self, states: dict[str, PoolState]) -> None:
        """Make the change; from here on there is no way back."""
        self._check_open()
        made = self._made_pools(states)
        self._switching = True
        runtime = self._runtime
        moving = isinstance(self.change.command, Move)
        released = Placement("", (), ())
        for group in self._groups.values():
            group.pool.dismiss(group.name)
        self._staged.vacate()
        if not moving:
            holdings = {target.pool: Holding(target.pool) for target in self.change.targets}
            leaving = [pool.holding for pool in self.pools if pool.holding is not None]
            taking = {holdings[name]: self._staged.placements[name] for name in holdings}
            released = runtime.holdings.exchange(leaving, taking)
            for name, holding in holdings.items():
                if name in made:
                    made[name].begin(self._staged.placements[name], holding, self.pools[0])
                else:
                    self._pools[name].hold_slots(self._staged.placements[name], holding)
        self._staged.keep()
        for pool in self.pools:
            if pool.name in {target.pool for target in self.change.targets} or moving:
                pool.next_generation(self._id)
        homes = made | self._pools
        for name, home in sorted(self.change.homes.items()):
            # A group that another thread closed in the meantime must not make the others fail.
            with suppress(PoolClosedError):
                switch(self._groups[name], self._staged.prepared[name], self._reason(), homes[home])
                homes[home].place(self._groups[name])
        if made:
            for pool in self.pools:
                pool.give_way(list(made.values()), self._fate())
        runtime.cluster.release(released)

    def _made_pools(self, states: dict[str, PoolState]) -> dict[str, RayResourcePool]:
        """Make the pools that are not there yet; they are paused if one that they come of was."""
        like = self.pools[0]
        made: dict[str, RayResourcePool] = {}
        try:
            for target in self.change.targets:
                if target.pool not in self._pools:
                    made[target.pool] = RayResourcePool(
                        target.sizes,
                        use_gpu=like.use_gpu,
                        name_prefix=target.pool,
                        max_colocate_count=like.max_colocate_count,
                        accelerator_type=like.accelerator_type,
                        runtime=like.runtime,
                    )
                    if PoolState.PAUSED in states.values():
                        made[target.pool].gate.pause()
        except BaseException:
            for pool in made.values():
                pool.close()
            raise
        return made

    def _roll_back(self, error: BaseException, report: Callable[[str], None]) -> None:
        if self._switching:
            self._give_up(error)
            return
        reconfigurations = [(self._groups[name], self._staged.reconfigurations[name]) for name in self._reconfigured]
        self.abandon()
        if not self._retired and not reconfigurations:
            return
        report("bringing the old workers back")
        try:
            for group, change in reconfigurations:
                take_back(group, change, _ROLLBACK_S)
            if self._retired:
                self._restore()
        except BaseException as second:
            _log.exception("a change could not be rolled back")
            self._give_up(second)

    def _restore(self) -> None:
        """Start the groups again as they were, with the state that was saved."""
        for pool in self.pools:
            before = self._seen[pool.name][0]
            if before is not None and pool.placement_now is not before:
                self._regain(pool, before)
                for group in self._groups.values():
                    pool.place(group)
        for name, group in sorted(self._groups.items()):
            if name in self._staged.staying:
                continue
            prepared = prepare(group, group.pool.placement_now, timeout_s=_ROLLBACK_S)
            self._staged.prepared[name] = prepared
            hand_over(group, prepared, self._states[name], _ROLLBACK_S)
            switch(group, prepared, f"a {self.change.plan.kind} that failed was rolled back")
            del self._staged.prepared[name]

    def _regain(self, pool: RayResourcePool, before: Placement) -> None:
        """Reserve again what was given back, on the entries that it was in."""
        there = set(slot_keys(pool.placement_now))
        entries: dict[int, list[tuple[SlotKey, str]]] = {}
        for key, slot in zip(slot_keys(before), before.slots, strict=True):
            entries.setdefault(slot.node_index, []).append((key, slot.node))
        wanted = []
        for slots in entries.values():
            kept = tuple(key for key, _ in slots if key in there)
            wanted.append(NodeTarget(kept, len(slots) - len(kept), slots[0][1] if kept else ""))
        target = Target(pool.name, tuple(wanted))
        extras = reserve_extras(self._runtime.cluster, pool.request, target, _ROLLBACK_S)
        self._hold(pool, target, extras)

    def _give_up(self, error: BaseException) -> None:
        """Say in words and for good that the pools cannot be used any more."""
        self.abandon()
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        for pool in self.pools:
            pool.gate.end(PoolState.FAILED, f"{self._reason()} could neither be done nor undone: {first}")

    def _reason(self) -> str:
        return f"{self.change.plan.kind} by {self.change.command.who} ({self._id})"

    def _fate(self) -> str:
        verb = "split into" if self.change.plan.kind == "split" else "merged into"
        return f"{verb} {self.change.after} by {self.change.command.who}"


def _names(pool: RayResourcePool) -> tuple[str, ...]:
    return pool.groups
