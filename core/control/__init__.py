"""Commands on a running driver and what becomes of them.

The plane itself is imported when it is first asked for: who only shows commands and plans needs no worker groups.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from core.control.commands import (
    Command,
    ControlPlane,
    GroupMove,
    Merge,
    Move,
    Operation,
    OperationState,
    Part,
    Pause,
    Plan,
    PoolChange,
    PoolSnapshot,
    Resize,
    Resume,
    Split,
)

if TYPE_CHECKING:
    from core.control.plane import RuntimeControl


def __getattr__(name: str) -> object:
    """Import the plane."""
    if name != "RuntimeControl":
        raise AttributeError(f"module 'core.control' has no attribute {name!r}")
    value = globals()[name] = import_module("core.control.plane").RuntimeControl
    return value


__all__ = [
    "Command",
    "ControlPlane",
    "GroupMove",
    "Merge",
    "Move",
    "Operation",
    "OperationState",
    "Part",
    "Pause",
    "Plan",
    "PoolChange",
    "PoolSnapshot",
    "Resize",
    "Resume",
    "RuntimeControl",
    "Split",
]
