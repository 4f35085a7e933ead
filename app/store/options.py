"""How a writer goes about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.store.prune import Retention

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How the writer goes about it; the defaults are the measured ones.

    Below ``min_free_bytes`` on the disk only what is flushed is written. ``ballast_bytes`` are held so that they can be
    released on a full disk. A write-ahead log above ``log_warn_bytes`` is worth a warning.
    """

    capacity: int = 100_000
    batch_size: int = 1_000
    interval_s: float = 0.1
    heartbeat_s: float = 1.0
    checkpoint_s: float = 10.0
    anchor_s: float = 60.0
    retry_s: float = 0.5
    max_retry_s: float = 30.0
    prune_s: float = 1.0
    retention: Retention = field(default_factory=Retention)
    tracebacks: bool = True
    min_free_bytes: int = 10**9
    ballast_bytes: int = 16 * _MIB
    log_warn_bytes: int = 256 * _MIB
