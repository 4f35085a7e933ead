"""How much of a text that the user's program made is kept: a page that lists it must stay a page."""

from __future__ import annotations

# A metric's name; a line in the list of events, or a reason; the message and the traceback of an error.
NAME, LINE, MESSAGE, TRACEBACK = 200, 4_000, 16_000, 64_000


def bounded(text: str, most: int) -> str:
    """Return ``text``, of a longer one its first ``most`` characters and how many were cut."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters were cut)"


def bounded_end(text: str, most: int) -> str:
    """Return ``text``, of a longer one its last ``most`` characters and how many were cut: its end matters."""
    return text if len(text) <= most else f"({len(text) - most:,} characters were cut) …{text[-most:]}"


def shown(column: str, most: int = LINE) -> str:
    """Return the SQL of a text column as ``bounded`` would have kept it: older files hold texts of any length."""
    cut = f"substr({column}, 1, {most}) || '… (' || (length({column}) - {most}) || ' more characters)'"
    # What ``bounded`` wrote is a little longer than its bound.
    return f"CASE WHEN length({column}) > {most + 100} THEN {cut} ELSE {column} END"
