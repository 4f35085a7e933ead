"""Is the ``core`` that Python finds ours? A user's own folder of that name beside the driver would be found first."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def check_core_is_ours() -> None:
    """Check that ``import core`` means Podium's.

    Raises:
        ImportError: It means something else, or nothing.
    """
    found = core_origin()
    ours = _HERE.parent / "core" / "__init__.py"
    if found != ours:
        raise ImportError(
            f"Podium needs its own package 'core' ({ours.parent}), but Python finds {found or 'none'}; "
            "rename your own 'core', or move it out of the folder that the driver is started from"
        )


def shadowed_by(folder: Path) -> Path | None:
    """Return what in ``folder`` would be taken for ``core`` by a script there, and by its workers; None if nothing."""
    for candidate in (folder / "core" / "__init__.py", folder / "core.py"):
        if candidate.is_file() and candidate.resolve() != _HERE.parent / "core" / "__init__.py":
            return candidate
    return None


def core_origin() -> Path | None:
    """Return the file that ``import core`` runs, or None."""
    spec = importlib.util.find_spec("core")
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
