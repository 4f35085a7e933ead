"""The methods of the shell around a worker, by the names under which the driver calls them."""

from __future__ import annotations

from typing import Final

HOLD_PORT: Final = "_podium_hold_port"
CONSTRUCT: Final = "_podium_construct"
DESCRIBE: Final = "_podium_describe"
LOAD_STATE: Final = "_podium_load_state"
SET_RANK: Final = "_podium_set_rank"
PING: Final = "_podium_ping"
IS_ALIVE: Final = "_podium_is_alive"
CLEAN_UP: Final = "_podium_clean_up"
RUN: Final = "_podium_run"
ANSWER: Final = "_podium_answer"


def answer_of(method: str, takes_arguments: bool = True) -> str:
    """Return the name of the shell's own entry for a registered method: a call by it needs no header at all.

    There is a second one for calls without arguments: Ray binds arguments to a signature for each rank, unless there
    is nothing to bind. No method can be named so that the two meet.
    """
    return f"{ANSWER}_{method}" if takes_arguments else f"{ANSWER}_0_{method}"
