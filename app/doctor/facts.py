"""What the checks look at, collected from this machine. Nothing is judged here, and nothing stays changed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging import requirements

from app.store.mounts import filesystem_of

OUR_PACKAGES = ("core", "app", "web")
_OURS = Path(__file__).resolve().parents[2]
_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 of control groups writes a huge number for no limit."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that Podium needs; ``installed`` is empty where it is missing."""

    name: str
    wanted: str
    installed: str


@dataclass(frozen=True, slots=True)
class Limits:
    """CPUs and memory: of the machine, of this process's control group, and as Ray counts them.

    None stands for no limit. Ray reads the limits at the root of the control groups, which is a container's own.
    """

    machine_cpus: int
    allowed_cpus: int
    group_cpus: float | None
    ray_cpus: float
    machine_bytes: int
    group_bytes: int | None
    ray_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is checked."""

    python: str
    python_wanted: str
    requirements: tuple[Requirement, ...]
    shadows: tuple[Path, ...]
    port_error: str
    runs_dir: Path
    runs_error: str
    runs_filesystem: str
    runs_free_bytes: int
    shm_bytes: int | None
    limits: Limits
    open_files: int
    open_files_hard: int
    ray_temp_dir: str
    ray_address: str
    ray_auth_mode: str
    has_ray_token: bool


def collect(runs_dir: Path, port: int = 0, environ: Mapping[str, str] = os.environ) -> Facts:
    """Look at this machine; ``runs_dir`` and ``port`` are what a run would get."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    existing = _existing(runs_dir.absolute())
    return Facts(
        python=platform.python_version(),
        python_wanted=_metadata("Requires-Python") or ">=3.11",
        requirements=_requirements(),
        shadows=_shadows(Path.cwd()),
        port_error=_port_error(port),
        runs_dir=runs_dir,
        runs_error=_write_error(existing),
        runs_filesystem=filesystem_of(existing),
        runs_free_bytes=shutil.disk_usage(existing).free,
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        limits=_limits(),
        open_files=files[0],
        open_files_hard=files[1],
        ray_temp_dir=environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp",
        ray_address=environ.get("RAY_ADDRESS", ""),
        ray_auth_mode=environ.get("RAY_AUTH_MODE", ""),
        has_ray_token=_has_ray_token(environ),
    )


def own_group(text: str, controller: str) -> str:
    """Return the path of a process's control group from ``/proc/self/cgroup``, "/" where it does not say."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    for parts in lines:
        if len(parts) == 3 and (controller in parts[1].split(",") or parts[:2] == ["0", ""]):
            return parts[2]
    return "/"


def parse_cpus(maximum: str) -> float | None:
    """Return how many CPUs ``cpu.max`` allows, such as "150000 100000"; None for no limit."""
    parts = maximum.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def parse_bytes(maximum: str) -> int | None:
    """Return how many bytes ``memory.max`` allows; None for no limit."""
    text = maximum.strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT_BYTES else None


def _limits() -> Limits:
    groups = _text(Path("/proc/self/cgroup"))
    machine_cpus, machine_bytes = os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = [_cpus_of(folder) for folder in _folders(own_group(groups, "cpu"), "cpu")]
    memory = [_bytes_of(folder) for folder in _folders(own_group(groups, "memory"), "memory")]
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine_cpus
    return Limits(
        machine_cpus=machine_cpus,
        allowed_cpus=allowed,
        group_cpus=min((one for one in cpus if one is not None), default=None),
        ray_cpus=cpus[0] if cpus[0] is not None else machine_cpus,
        machine_bytes=machine_bytes,
        group_bytes=min((one for one in memory if one is not None), default=None),
        ray_bytes=min(machine_bytes, memory[0]) if memory[0] is not None else machine_bytes,
    )


def _folders(group: str, controller: str) -> list[Path]:
    """Return the folders of a control group and all above it, the root first: each can hold a limit."""
    root = _CGROUPS if (_CGROUPS / "cgroup.controllers").exists() else _CGROUPS / controller
    folders = [root]
    for name in [part for part in group.split("/") if part and part != ".."]:
        folders.append(folders[-1] / name)
    return folders


def _cpus_of(folder: Path) -> float | None:
    one = f"{_text(folder / 'cpu.cfs_quota_us').strip()} {_text(folder / 'cpu.cfs_period_us').strip()}"
    return parse_cpus(_text(folder / "cpu.max") or one)


def _bytes_of(folder: Path) -> int | None:
    return parse_bytes(_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes"))


def _requirements() -> tuple[Requirement, ...]:
    try:
        lines = importlib.metadata.requires("podium") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    wanted = [requirements.Requirement(line) for line in lines]
    return tuple(
        Requirement(one.name, str(one.specifier), _version(one.name))
        for one in wanted
        if one.marker is None or one.marker.evaluate({"extra": ""})
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _metadata(name: str) -> str:
    try:
        return importlib.metadata.metadata("podium")[name] or ""
    except (importlib.metadata.PackageNotFoundError, KeyError):
        return ""


def _shadows(folder: Path) -> tuple[Path, ...]:
    """Return what in ``folder`` hides a package of ours from a script there."""
    candidates = [path for name in OUR_PACKAGES for path in (folder / name / "__init__.py", folder / f"{name}.py")]
    return tuple(path for path in candidates if path.is_file() and _OURS not in path.resolve().parents)


def _port_error(port: int) -> str:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())


def _write_error(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _has_ray_token(environ: Mapping[str, str]) -> bool:
    """Return whether Ray finds a token: in the environment, in the file that names, or in the user's home."""
    if environ.get("RAY_AUTH_TOKEN"):
        return True
    try:
        home = Path.home()
    except RuntimeError:
        home = Path("/nonexistent")
    try:
        return Path(environ.get("RAY_AUTH_TOKEN_PATH") or home / ".ray" / "auth_token").is_file()
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
