"""The prepared part of a change before the switch: slots, new workers, and the slots that are occupied for them.

All of it can be undone. It may run on any thread that may use the cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from core.cluster import Placement
from core.cluster.holdings import SlotKey, occupy, slot_keys, vacate
from core.control.plans import Change, Mode
from core.control.slots import known_slots, put_together, reserve_extras
from core.group.group_state import GroupState
from core.group.worker_set import WorkerSet
from core.lifecycle.reconfigure import Reconfiguration, discard, spawn_missing
from core.lifecycle.replace_workers import abandon, prepare
from core.pool import RayResourcePool
from core.runtime import Runtime


class StagedChange:
    """The slots and workers that come for one change, by pool and by group.

    ``prepared`` are workers that are built, ``reconfigurations`` processes beside which others of their group stay.
    """

    def __init__(
        self,
        runtime: Runtime,
        change: Change,
        pools: Mapping[str, RayResourcePool],
        groups: Mapping[str, GroupState],
        left_s: Callable[[], float],
    ) -> None:
        """Bring up nothing yet; ``left_s`` says how long it may take."""
        self.placements: dict[str, Placement] = {}
        self.prepared: dict[str, WorkerSet] = {}
        self.reconfigurations: dict[str, Reconfiguration] = {}
        self.staying = frozenset(move.group for move in change.plan.groups if move.how == "reconfigure")
        self._runtime, self._change, self._pools, self._groups = runtime, change, pools, groups
        self._cluster, self._left_s = runtime.cluster, left_s
        self._reserved: list[Placement] = []
        self._occupied: list[tuple[tuple[SlotKey, ...], str]] = []

    def reserve(self, report: Callable[[str], None]) -> None:
        """Reserve the slots that are missing, and say which all pools are to have.

        Raises:
            PlacementError: They were not free in time.
        """
        known = known_slots(self._runtime, tuple(self._pools.values()))
        for target in self._change.targets:
            extras: tuple[Placement, ...] = ()
            if target.extras:
                n_extra = sum(entry.extra for entry in target.extras)
                report(f"reserving {n_extra} slots for {target.pool}")
                # Only a resize asks for more, and its pool is there.
                request = self._pools[target.pool].request
                extras = reserve_extras(self._cluster, request, target, self._left_s())
                self._reserved += extras
            self.placements[target.pool] = put_together(target, known, extras)

    def start(self, is_cancelled: Callable[[], bool], report: Callable[[str], None]) -> None:
        """Bring up the new workers of all groups side by side; the first that fails stops the others.

        Raises:
            WorkerStartError: A new worker did not come up.
            CallTimeoutError: They were not up in time, or the start was cancelled.
        """
        if not self._groups:
            return
        stop = threading.Event()
        with ThreadPoolExecutor(len(self._groups), thread_name_prefix="podium-start") as starters:
            try:
                starting = []
                for name, home in sorted(self._change.homes.items()):
                    n_workers = len(self.placements[home].slots)
                    report(f"starting {n_workers} workers of {name} for {home}")
                    self._occupy(name, home)
                    starting.append(
                        starters.submit(self._start_one, name, home, lambda: stop.is_set() or is_cancelled())
                    )
                done, _ = wait(starting, return_when=FIRST_EXCEPTION)
                failed = next((error for one in done if (error := one.exception()) is not None), None)
                if failed is not None:
                    raise failed
            finally:
                # Leaving the block waits for the others, which look at this four times a second.
                stop.set()

    def keep(self) -> None:
        """Have what was reserved belong to its pools: ``abandon`` does not give it back any more."""
        self._reserved = []

    def abandon(self) -> None:
        """End and give back what was brought up and not switched to; may be called twice."""
        for name, prepared in self.prepared.items():
            if name not in self.reconfigurations:
                abandon(self._groups[name], prepared)
        for name, reconfiguration in self.reconfigurations.items():
            discard(self._groups[name], reconfiguration)
        self.vacate()
        # A cluster that was closed meanwhile has released them; the runtime would now connect to another one.
        for placement in self._reserved if self._runtime.connected else ():
            self._cluster.release(placement)
        self.prepared, self.reconfigurations, self._reserved, self.placements = {}, {}, [], {}

    def vacate(self) -> None:
        """Free the slots that were occupied for new workers: they have started, or will not start."""
        for keys, tenant in self._occupied:
            vacate(self._runtime.slot_tenants, keys, tenant)
        self._occupied = []

    def _start_one(self, name: str, home: str, is_cancelled: Callable[[], bool]) -> None:
        group, placement = self._groups[name], self.placements[home]
        like = self._pools.get(home) or next(iter(self._pools.values()))
        if name in self.staying:
            self.reconfigurations[name] = spawn_missing(group, placement, like, self._left_s(), is_cancelled)
        else:
            self.prepared[name] = prepare(group, placement, like, self._left_s(), is_cancelled)

    def _occupy(self, name: str, home: str) -> None:
        """Occupy the slots of new workers that start beside the old ones, so that no other group takes them."""
        if self._change.mode is not Mode.PREPARED:
            return
        there = set(slot_keys(self._groups[name].pool.placement_now)) if name in self.staying else set()
        keys = tuple(key for key in slot_keys(self.placements[home]) if key not in there)
        occupy(self._runtime.slot_tenants, keys, f"{name} (to come)")
        self._occupied.append((keys, f"{name} (to come)"))


def _either(first: Callable[[], bool], second: Callable[[], bool]) -> bool:
    return first() or second()
