"""Replaces modules of verl's as they are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import core
from app.verl.names import CONTROLLER, DECORATOR, IGNORED_SWITCHES, NAMES, PACKAGES, PROTOCOL, RELEASES
from core.data.rows import take_first_without_rows
from core.errors import UsageError


class _Replacement(Loader):
    """Fills a module with objects of ``core``."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None: an ordinary module will do."""
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the objects in."""
        name = module.__name__
        module.__doc__ = f"{name}, replaced by Podium's core (podium run --verl)."
        names = NAMES[name]
        vars(module).update({own: getattr(core, own) for own in names})
        vars(module)["__all__"] = [own for own in names if not own.startswith("_")]
        vars(module)["__getattr__"] = _missing_in(name)
        if name == DECORATOR:
            core.wrap_registered_methods(_bridged)
        if name == PROTOCOL:
            take_first_without_rows()
            for switch, reason in IGNORED_SWITCHES.items():
                if os.environ.get(switch):
                    print(f"podium: {switch} has no effect with --verl: {reason}", file=sys.stderr, flush=True)


class _Finder(MetaPathFinder):
    """Finds the modules that are replaced, before any other finder is asked."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the replacement of one of verl's modules; None for all others.

        Raises:
            ImportError: It is a module of an old verl's controller.
        """
        del path, target
        if fullname in NAMES:
            return ModuleSpec(fullname, _Replacement(), origin="podium", is_package=fullname in PACKAGES)
        if fullname.startswith(f"{CONTROLLER}."):
            raise ModuleNotFoundError(
                f"no module named {fullname!r}: verl's controller is replaced by Podium's core (podium run --verl), "
                f"which offers {', '.join(sorted(NAMES))}",
                name=fullname,
            )
        return None


def _missing_in(module: str) -> Callable[[str], Any]:
    def missing(name: str) -> Any:
        """Raise what ``core`` says of an old name, else that the module has none of this name."""
        if not name.startswith("__") and name not in core.__all__:
            # An old name is an ImportError with the way out.
            getattr(core, name, None)
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}; it is replaced by Podium's core (podium run --verl)"
        )

    return missing


def _bridged(method: Callable[..., Any], registration: Any) -> Callable[..., Any]:
    """Wrap a registered method in verl's bridge, which fetches what a ``KVBatchMeta`` points to."""
    # As verl's own decorator does, and only there: the module belongs to verl.
    from verl.utils.transferqueue_utils import tqbridge

    wrapped: Callable[..., Any] = tqbridge(dispatch_mode=registration.dispatch_mode)(method)
    return wrapped


def check_verl(modules: Mapping[str, object]) -> str:
    """Return verl's version; ``modules`` are those that are imported already.

    Raises:
        UsageError: verl is missing, of a release whose names are not known here, or imported already.
    """
    # Without an import: verl's own __init__ imports the batch at once.
    spec = PathFinder.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"--verl needs verl, and {sys.executable} has none; install verl and podium into one environment, "
            f"for example: pip install verl==0.9.1"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    try:
        version = (folder / "version" / "version").read_text(encoding="utf-8").strip()
        release = tuple(int(part) for part in version.split(".")[:2])
    except (OSError, ValueError) as error:
        raise UsageError(f"--verl cannot read the version of verl in {folder}: {error}") from error
    if release not in RELEASES:
        known = ", ".join(".".join(map(str, one)) for one in RELEASES)
        raise UsageError(
            f"--verl knows the names of verl {known}, and {folder} is verl {version}; install verl {known}"
        )
    if early := sorted(name for name in modules if name in NAMES):
        raise UsageError(
            f"--verl comes too late: {', '.join(early)} of verl is imported already; use `podium run --verl`, which "
            f"comes before the program, and import nothing of verl at Python's start"
        )
    return version


def replace_modules() -> None:
    """Have verl's controller and batch replaced in this process; may be called twice."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
