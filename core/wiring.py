"""How a runtime gets the parts of higher layers, which it does not import.

``core/__init__`` sets the composition root (``core.composition``) here when the package is imported; a runtime calls it
on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Composer: TypeAlias = Callable[[Any], Any]
"""Takes a ``core.runtime.Runtime`` and returns its ``core.runtime.Parts``."""

_composers: list[Callable[[], Composer]] = []


def set_composer(find: Callable[[], Composer]) -> None:
    """Set what makes a runtime's parts; ``find`` imports it."""
    _composers[:] = [find]


def composer() -> Composer:
    """Return what makes a runtime's parts."""
    return _composers[0]()
