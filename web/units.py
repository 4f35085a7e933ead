"""Numbers as a person reads them. ``static/js/format.js`` says the same in the browser."""

from __future__ import annotations

import math

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def duration(ms: float | None) -> str:
    """Return a duration in ms with the unit that keeps about three digits: ``0.42 ms``, ``12.3 s``, ``1 h 02 m``."""
    # A stranger's file can say "Infinity".
    if ms is None or not math.isfinite(ms):
        return "–"
    if ms < 0:
        return ("−" if ms <= -0.005 else "") + duration(-ms)
    if ms == 0:
        return "0 ms"
    if ms < 9.995:
        return f"{ms:.2f} ms"
    if ms < 99.95:
        return f"{ms:.1f} ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 9_995:
        return f"{ms / 1000:.2f} s"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    return _long_duration(round(ms / 1000))


def _long_duration(s: int) -> str:
    if s < 3600:
        return f"{s // 60} m {s % 60:02d} s"
    if s < 86_400:
        return f"{s // 3600} h {s % 3600 // 60:02d} m"
    return f"{s // 86_400} d {s % 86_400 // 3600:02d} h"


def since_start(ms: float | None) -> str:
    """Return a point of time, in ms since the run's start, as ``0:12.345`` or ``1:02:03.456``."""
    if ms is None or not math.isfinite(ms):
        return "–"
    whole = round(ms)
    s, rest_ms = divmod(max(whole, 0), 1000)
    if s < 3600:
        return f"{s // 60}:{s % 60:02d}.{rest_ms:03d}"
    return f"{s // 3600}:{s % 3600 // 60:02d}:{s % 60:02d}.{rest_ms:03d}"


def count(n: int) -> str:
    """Return a whole number with its thousands apart."""
    return f"{n:,}"


def bytes_size(n: int) -> str:
    """Return a number of bytes in the binary unit that keeps it below 1,024."""
    if n < 1024:
        return f"{n} B"
    value = float(n)
    unit = 0
    while value >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value /= 1024
        unit += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_BYTE_UNITS[unit]}"


def percent(share: float) -> str:
    """Return a share 0..1 in percent; what is not nothing is never shown as ``0 %``."""
    if share <= 0:
        return "0 %"
    if share < 0.001:
        return "<0.1 %"
    return f"{share * 100:.1f} %" if share < 0.0995 else f"{share * 100:.0f} %"


def rate(per_s: float) -> str:
    """Return a rate per second with three digits or fewer."""
    if per_s < 9.995:
        return f"{per_s:.2f}"
    return f"{per_s:.1f}" if per_s < 99.95 else f"{per_s:,.0f}"


def metric(value: float) -> str:
    """Return a step's metric with four significant digits."""
    return f"{value:.4g}"
