"""Commands on a running driver and what becomes of them."""

from core.control.commands import (
    Command,
    ControlPlane,
    Operation,
    OperationState,
    Pause,
    PoolSnapshot,
    Resume,
)
from core.control.plane import RuntimeControl

__all__ = [
    "Command",
    "ControlPlane",
    "Operation",
    "OperationState",
    "Pause",
    "PoolSnapshot",
    "Resume",
    "RuntimeControl",
]
