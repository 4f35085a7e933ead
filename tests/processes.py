"""What a process of a test starts with: nothing of how the tests themselves were started."""

from __future__ import annotations

import os
import signal

_DEFAULTS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without what would steer Ray or Podium."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PODIUM_"))}


def reset_signals() -> None:
    """Give every signal the meaning it has in a shell: a process inherits which are ignored and blocked.

    With SIGINT ignored (``make test &`` in a script) no Ctrl-C of a test would reach the process it starts, with
    SIGCHLD ignored no exit code would come back.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in _DEFAULTS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
