"""Which spans are pruned when a file is too large or they are too old. Roll-ups, calls, events and operations stay."""

from __future__ import annotations

from dataclasses import dataclass

# Pruning begins before the file is full, and takes a part of what is left each time.
_FULL = 0.9
_SHARE = 0.1
SLICE_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept. ``max_bytes`` bounds the file and ``keep_spans_s`` the age of spans; 0 means no bound."""

    max_bytes: int = 4 * 1024**3
    keep_spans_s: float = 0.0


def cut_ns(retention: Retention, used_bytes: int, last_ns: int, pruned_before_ns: int) -> int | None:
    """Return the time before which spans shall go, or None when all may stay.

    Args:
        retention: What the user asked for.
        used_bytes: What the file holds, free pages not counted.
        last_ns: The newest recorded time, since the run's start.
        pruned_before_ns: Before this time spans have gone already.
    """
    cuts = []
    if retention.keep_spans_s and last_ns - pruned_before_ns > 1.1e9 * retention.keep_spans_s:
        cuts.append(last_ns - int(retention.keep_spans_s * 1e9))
    if retention.max_bytes and used_bytes > _FULL * retention.max_bytes:
        cuts.append(pruned_before_ns + int(_SHARE * (last_ns - pruned_before_ns)))
    return max(cuts) if cuts and max(cuts) > pruned_before_ns else None
