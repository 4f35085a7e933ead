"""The composition root: hands a runtime what stands above it."""

from __future__ import annotations

from core.control.plane import RuntimeControl
from core.lifecycle.restart import schedule_restart
from core.runtime import Parts, Runtime


def compose(runtime: Runtime) -> Parts:
    """Return the parts of a runtime that it does not know itself."""
    del runtime
    return Parts(control_plane=RuntimeControl, on_death=schedule_restart)
