"""Safe points: moments between two calls at which a driver's thread runs the actions that wait for it.

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
        """Run ``action`` at the next safe point and at each one after it, until it is withdrawn."""
        with self._lock:
            self._actions = (*(known for known in self._actions if known != action), action)

    def withdraw(self, action: Callable[[], object]) -> None:
        """Remove an action; no error if it is not registered."""
        with self._lock:
            self._actions = tuple(known for known in self._actions if known != action)

    @property
    def is_due(self) -> bool:
        """Return whether an action waits that this thread may run; a worker in the driver's process may not.

        The call that such a worker executes is in flight; a change made there would wait for its own end.
        """
        return bool(self._actions) and not shares_a_process()

    def run(self) -> None:
        """Run the waiting actions, if this thread may."""
        if self.is_due:
            for action in self._actions:
                action()

    def register_for(self, group: str, action: Callable[[], bool]) -> None:
        """Run ``action`` in each call of ``group`` after its gate, until it is withdrawn.

        The action returns whether the call must read the group's workers again.
        """
        with self._lock:
            self._by_group[group] = action

    def withdraw_for(self, group: str, action: Callable[[], bool] | None = None) -> None:
        """Remove a group's action: ``action``, or any; no error if it is not registered."""
        with self._lock:
            if action is None or self._by_group.get(group) is action:
                self._by_group.pop(group, None)

    def run_for(self, group: str) -> bool:
        """Run the action of ``group``, if any; return whether the call must read the group's workers again."""
        action = self._by_group.get(group)
        return action is not None and action()
