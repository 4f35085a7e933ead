"""Safe points: the moments between two calls at which a driver's thread does what waits for it.

Every call, step and checkpoint is a safe point, and so is the wait at a paused gate. Two kinds of actions wait there:
live changes, which any driver's thread makes, and the restart of a group, which that group's own next call makes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from core.cluster.base import shares_a_process


class SafePoint:
    """The actions of one driver that wait for a safe point."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()
        self._actions: tuple[Callable[[], object], ...] = ()
        self._by_group: dict[str, Callable[[], bool]] = {}

    def register(self, action: Callable[[], object]) -> None:
        """Have ``action`` run at the next safe point, and at each after that until it is withdrawn."""
        with self._lock:
            self._actions = (*(one for one in self._actions if one != action), action)

    def withdraw(self, action: Callable[[], object]) -> None:
        """Take an action back; no error when it is not registered."""
        with self._lock:
            self._actions = tuple(one for one in self._actions if one != action)

    @property
    def is_due(self) -> bool:
        """Whether an action waits that this thread may run: a worker that shares the driver's process may not.

        The call that such a worker runs is in flight; a change made there would wait for its own end.
        """
        return bool(self._actions) and not shares_a_process()

    def run(self) -> None:
        """Run what waits, if this thread may."""
        if self.is_due:
            for action in self._actions:
                action()

    def register_for(self, group: str, action: Callable[[], bool]) -> None:
        """Have ``action`` run by each call of ``group`` that has passed its gate, until it is withdrawn.

        It returns whether the call has to look again at what it runs on.
        """
        with self._lock:
            self._by_group[group] = action

    def withdraw_for(self, group: str, action: Callable[[], bool] | None = None) -> None:
        """Take a group's action back: ``action``, or any; no error when it is not registered."""
        with self._lock:
            if action is None or self._by_group.get(group) is action:
                self._by_group.pop(group, None)

    def run_for(self, group: str) -> bool:
        """Run what waits for a call of ``group``; return whether the call has to look again."""
        action = self._by_group.get(group)
        return action is not None and action()
