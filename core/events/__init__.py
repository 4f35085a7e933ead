"""Facts that leave core: frozen values, the ``Observer`` that sees them, and the bus in between."""

from core.events.bus import EventBus, Observer
from core.events.facts import (
    CallFinished,
    CallStarted,
    ErrorFacts,
    Event,
    GroupClosed,
    GroupCreated,
    MethodFacts,
    Notice,
    OperationChanged,
    PoolCreated,
    PoolStateChanged,
    RankFinished,
    SlotFacts,
    StepFinished,
    StepStarted,
    WorkerEnded,
    WorkerStarted,
)

__all__ = [
    "CallFinished",
    "CallStarted",
    "ErrorFacts",
    "Event",
    "EventBus",
    "GroupClosed",
    "GroupCreated",
    "MethodFacts",
    "Notice",
    "Observer",
    "OperationChanged",
    "PoolCreated",
    "PoolStateChanged",
    "RankFinished",
    "SlotFacts",
    "StepFinished",
    "StepStarted",
    "WorkerEnded",
    "WorkerStarted",
]
