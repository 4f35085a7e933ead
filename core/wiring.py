"""How a runtime gets what stands above it, which it does not know.

``core/__init__`` names the composition root (``core.composition``) here, as the first thing that is run of this
package; a runtime calls it on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Composer: TypeAlias = Callable[[Any], Any]
"""Takes a ``core.runtime.Runtime`` and returns its ``core.runtime.Parts``."""

_composers: list[Callable[[], Composer]] = []


def set_composer(find: Callable[[], Composer]) -> None:
    """Set who makes a runtime's parts; ``find`` imports it."""
    _composers[:] = [find]


def composer() -> Composer:
    """Return who makes a runtime's parts."""
    return _composers[0]()
