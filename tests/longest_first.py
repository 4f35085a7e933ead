"""In a parallel run the longest files start first; else one of them, started last, runs alone at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

LONGEST_FIRST = (
    "e2e/test_demo_in_browser.py",
    "integration/test_groups_on_ray.py",
    "integration/test_process_life.py",
    "e2e/test_pools_page.py",
    "integration/test_detached_on_ray.py",
    "integration/test_pools_on_ray.py",
    "integration/test_bytes_on_ray.py",
    "integration/test_nodes_on_ray.py",
    "e2e/test_postmortem_page.py",
    "integration/test_deaths_on_ray.py",
    "integration/test_live_on_ray.py",
    "e2e/test_bad_input.py",
    "integration/test_signals.py",
    "integration/test_readme.py",
    "e2e/test_worker_killed.py",
)
"""The files that take longest, from ``pytest --durations``. The order of the rest does not matter."""


def turn(path: Path) -> int:
    """Return the place of a test file in a parallel run: the lower, the earlier."""
    name = "/".join(path.parts[-2:])
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


def missing(tests: Path) -> Sequence[str]:
    """Return what the list names and the folder does not have."""
    return [name for name in LONGEST_FIRST if not (tests / name).is_file()]
