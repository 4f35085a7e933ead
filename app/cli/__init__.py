"""The command ``podium``: data on stdout, messages on stderr.

Exit codes: 0 ok, 1 failed, 2 usage, 3 refused, 4 not authorized, 5 not reachable. ``podium run`` ends with the code of
the script it ran.
"""

from __future__ import annotations

from app.cli.program import main

__all__ = ["main"]
