"""What ends a command from outside: Ctrl-C, SIGTERM, and a terminal that goes away.

While a script runs, signals mean what they mean to Python: Ctrl-C raises ``KeyboardInterrupt``, also where SIGINT was
ignored when the process started, as it is for a background job of a shell without job control. SIGTERM and SIGHUP
raise ``Terminated``. A script may install its own handlers; they stay until it is over. After that Podium cleans up,
and a signal during the cleanup ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from app.cli.say import message

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.5


class Terminated(SystemExit):
    """A signal asked the process to end; the exit code is the one that a shell shows, 128 and the signal's number."""

    def __init__(self, number: int) -> None:
        """Remember which signal it was."""
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        """Name the signal."""
        return f"terminated by {signal.Signals(self.number).name}"

    def __reduce__(self) -> tuple[type[Terminated], tuple[int]]:
        """Pickle as the signal's number."""
        return type(self), (self.number,)


class EndSignals:
    """The handlers of SIGINT, SIGTERM and SIGHUP while a command runs; those from before are put back afterwards.

    A SIGHUP that is ignored stays ignored (``nohup``), and a handler that a caller of ``main`` installed stays as it is
    while the script runs. Outside the main thread, where Python allows no handlers, nothing is changed.
    """

    def __init__(self, end_now: Callable[[int], None]) -> None:
        """Remember what ends the process at once; it gets the exit code."""
        self._end_now = end_now
        self._before: dict[signal.Signals, Any] = {}
        self._terminated: list[int] = []

    def __enter__(self) -> EndSignals:
        """Raise in the main thread from now on."""
        if threading.current_thread() is threading.main_thread():
            # A process inherits which signals are blocked, too.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)
            self._before = {
                number: signal.getsignal(number)
                for number in _NUMBERS
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            }
            for number, before in self._before.items():
                if before in {signal.SIG_DFL, signal.SIG_IGN}:
                    # What asyncio replaces for its own way to cancel is exactly Python's handler, no wrapper of it.
                    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else self._terminate)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back the handlers from before."""
        for number, before in self._before.items():
            # None stands for a handler that was not installed from Python; it cannot be put back.
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def cause(self, error: BaseException | None) -> BaseException | None:
        """Return what made a script leave with ``error``: a signal, where Ray hides that it was one.

        An exit that a signal's handler raises while Ray waits comes out of Ray as another one, with code 1.
        """
        hidden = isinstance(error, SystemExit) and not isinstance(error, Terminated) and error.code == 1
        return Terminated(self._terminated[-1]) if hidden and self._terminated else error

    def clean_up(self, error: BaseException | None) -> None:
        """Let the next signal end the process, once the script is over; it ended with ``error``.

        The first signal of a script that was not interrupted only says that the end is near. A script that was
        interrupted twice has no cleanup of ours to wait for.
        """
        asked = is_interruption(error)
        if asked and (len(self._terminated) > 1 or _is_interruption_twice(error)):
            self._end_now(code_of(error))

        def handle(number: int, _frame: FrameType | None) -> None:
            nonlocal asked
            if asked:
                self._end_now(128 + number)
            asked = True
            message("the run is ending; a second signal ends it at once")

        self._install(handle)

    def wait(self, text: str) -> None:
        """Show ``text``, then wait for the first signal; a second one ends the process at once."""
        over = threading.Event()

        def handle(number: int, _frame: FrameType | None) -> None:
            if over.is_set():
                self._end_now(128 + number)
            over.set()

        self._install(handle)
        message(text)
        # A bare wait() would not let the main thread see a signal on every platform.
        while not over.wait(_LOOK_S):
            pass

    def _terminate(self, number: int, _frame: FrameType | None) -> None:
        self._terminated.append(number)
        raise Terminated(number)

    def _install(self, handle: Callable[[int, FrameType | None], None]) -> None:
        for number in self._before:
            signal.signal(number, handle)


def end_at_once_with(code: int) -> None:
    """Let a signal end this process with ``code``: its command is over, and what is left is Python's own cleanup."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: os._exit(code))


def is_interruption(error: BaseException | None) -> bool:
    """Return whether a script that left with ``error`` was asked to end."""
    return isinstance(error, KeyboardInterrupt | Terminated)


def code_of(error: BaseException | None) -> int:
    """Return the exit code for a script that was asked to end."""
    return 128 + (error.number if isinstance(error, Terminated) else int(signal.SIGINT))


def _is_interruption_twice(error: BaseException | None) -> bool:
    """Return whether ``error`` came during the cleanup after an earlier interruption."""
    earlier = None if error is None else error.__context__
    while earlier is not None and not is_interruption(earlier):
        earlier = earlier.__context__
    return earlier is not None
