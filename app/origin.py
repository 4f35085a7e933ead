"""Are the packages that Python finds ours? A user's own ``core``, ``app`` or ``web`` has the name of one of them."""

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


PACKAGES = ("core", "app", "web")


def shadowed_by(folder: Path) -> tuple[str, Path] | None:
    """Return what in ``folder`` has the name of a package of Podium's, with that name; None if nothing has.

    A script there that imports it would get ours, or its workers would get it for ours. A folder without Python files,
    such as ``web/`` with pages, can be imported by nobody.
    """
    for name in PACKAGES:
        if (folder / name).resolve() == _HERE.parent / name:
            continue
        for candidate in (folder / name / "__init__.py", folder / f"{name}.py"):
            if candidate.is_file():
                return name, candidate
        if any((folder / name).glob("*.py")):
            return name, folder / name
    return None


def core_origin() -> Path | None:
    """Return the file that ``import core`` runs, or None."""
    spec = importlib.util.find_spec("core")
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
