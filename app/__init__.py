"""The process around ``core``: ``serve`` records a driver and shows it in the browser."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from app.origin import check_core_is_ours

if TYPE_CHECKING:
    from app.server import serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    # On demand: the command line and the store need neither the server nor core, and core brings torch with it.
    if name == "serve":
        # Before anything imports core: a stranger's would fail there with a riddle.
        check_core_is_ours()
        return importlib.import_module("app.server").serve
    raise AttributeError(f"module 'app' has no attribute {name!r}")
