"""The commit that a driver's script is of, as git tells it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_LIMIT_S = 1.0
_N_DIGITS = 12


def commit_of(folder: Path) -> str:
    """Return the commit of the work tree that ``folder`` is in, with ", modified" where tracked files differ from it.

    Empty where there is no work tree or no git; without the note where git needs longer than a second to compare.
    """
    commit = _git(folder, "rev-parse", f"--short={_N_DIGITS}", "HEAD")
    if not commit:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}, modified" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    # Not even the index is refreshed on disk: a run changes nothing in the user's work tree.
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            env=environ,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
