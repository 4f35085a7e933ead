"""Judges facts about a machine; nothing is read here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from packaging.specifiers import SpecifierSet

from app.doctor.facts import Facts, Requirement
from app.store.mounts import is_network

_GIB = 1 << 30
_MIN_SHM_BYTES = 1 << 30
_DOCKER_SHM_BYTES = 64 << 20
_MIN_FREE_BYTES = 1 << 30
_MIN_FILES = 4096
_MAX_TEMP_BYTES = 38
"""Ray puts ``/ray/session_DATE_TIME_MICROSECONDS_PID/sockets/plasma_store`` (69 bytes) below; a socket takes 107."""


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and what to do about it."""

    name: str
    level: Level
    text: str
    fix: str = ""


def check_all(facts: Facts) -> tuple[Finding, ...]:
    """Return what every check finds, in the order in which one would fix it."""
    return (
        _python(facts),
        *(_package(one) for one in facts.requirements),
        _packages_of_ours(facts),
        _port(facts),
        _runs_dir(facts),
        _filesystem(facts),
        _disk(facts),
        _shared_memory(facts),
        _cpus(facts),
        _memory(facts),
        _open_files(facts),
        _temp_dir(facts),
        _ray_address(facts),
        _ray_token(facts),
    )


def _python(facts: Facts) -> Finding:
    if SpecifierSet(facts.python_wanted).contains(facts.python, prereleases=True):
        return Finding("Python", Level.OK, facts.python)
    fix = "create the virtual environment with a supported Python"
    return Finding("Python", Level.ERROR, f"{facts.python}; Podium needs {facts.python_wanted}", fix)


def _package(one: Requirement) -> Finding:
    if not one.installed:
        return Finding(one.name, Level.ERROR, f"not installed; Podium needs {one.wanted}", f"pip install '{one.name}'")
    if SpecifierSet(one.wanted).contains(one.installed, prereleases=True):
        return Finding(one.name, Level.OK, one.installed)
    fix = f"pip install '{one.name}{one.wanted}'"
    return Finding(one.name, Level.ERROR, f"{one.installed}; Podium needs {one.wanted}", fix)


def _packages_of_ours(facts: Facts) -> Finding:
    if not facts.shadows:
        return Finding("packages", Level.OK, "core, app and web are Podium's here")
    names = ", ".join(str(path) for path in facts.shadows)
    fix = "rename it, or run the driver from another directory"
    return Finding("packages", Level.ERROR, f"hides Podium's own package from a driver in this directory: {names}", fix)


def _port(facts: Facts) -> Finding:
    if not facts.port_error:
        return Finding("port", Level.OK, "127.0.0.1 accepts a server")
    fix = "choose another port, or 0 for a free one"
    return Finding("port", Level.ERROR, f"cannot listen on 127.0.0.1: {facts.port_error}", fix)


def _runs_dir(facts: Facts) -> Finding:
    if not facts.runs_error:
        return Finding("runs directory", Level.OK, f"{facts.runs_dir} is writable")
    fix = "choose another with --runs-dir"
    return Finding("runs directory", Level.ERROR, f"cannot write {facts.runs_dir}: {facts.runs_error}", fix)


def _filesystem(facts: Facts) -> Finding:
    kind = facts.runs_filesystem or "unknown"
    if not is_network(kind):
        return Finding("file system", Level.OK, f"{facts.runs_dir} is on {kind}")
    text = f"{facts.runs_dir} is on {kind}, a network file system; the run file uses a slower journal there"
    return Finding("file system", Level.WARNING, text, "choose a local directory with --runs-dir")


def _disk(facts: Facts) -> Finding:
    text = f"{_gib(facts.runs_free_bytes)} free for run files"
    if facts.runs_free_bytes >= _MIN_FREE_BYTES:
        return Finding("disk space", Level.OK, text)
    return Finding("disk space", Level.WARNING, text, "free some space, or choose another directory with --runs-dir")


def _shared_memory(facts: Facts) -> Finding:
    if facts.shm_bytes is None:
        return Finding("shared memory", Level.WARNING, "there is no /dev/shm; Ray's object store uses files on disk")
    text = f"/dev/shm has {_gib(facts.shm_bytes)}"
    if facts.shm_bytes >= _MIN_SHM_BYTES:
        return Finding("shared memory", Level.OK, text)
    if facts.shm_bytes == _DOCKER_SHM_BYTES:
        text += ", Docker's default of 64 MiB"
    fix = "in a container: docker run --shm-size=4g, or shm_size in docker-compose.yml"
    return Finding("shared memory", Level.WARNING, f"{text}; Ray's object store falls back to files on disk", fix)


def _cpus(facts: Facts) -> Finding:
    limits = facts.limits
    usable = min(limits.allowed_cpus, limits.group_cpus or limits.allowed_cpus)
    text = f"{usable:g} usable of {limits.machine_cpus}; Ray counts {limits.ray_cpus:g}"
    if limits.ray_cpus <= usable:
        return Finding("CPUs", Level.OK, text)
    return Finding("CPUs", Level.WARNING, text, f"pass --num-cpus {max(1, int(usable))}, or core.init(num_cpus=...)")


def _memory(facts: Facts) -> Finding:
    limits = facts.limits
    usable = min(limits.machine_bytes, limits.group_bytes or limits.machine_bytes)
    text = f"{_gib(usable)} usable of {_gib(limits.machine_bytes)}; Ray counts {_gib(limits.ray_bytes)}"
    if limits.ray_bytes <= usable:
        return Finding("memory", Level.OK, text)
    fix = "the limit of the control group applies: lower object_store_memory, or raise the limit"
    return Finding("memory", Level.WARNING, text, fix)


def _open_files(facts: Facts) -> Finding:
    text = f"limit {facts.open_files}"
    if facts.open_files < 0 or facts.open_files >= _MIN_FILES:
        return Finding("open files", Level.OK, text)
    able = facts.open_files_hard < 0 or facts.open_files_hard >= _MIN_FILES
    if able:
        # Ray raises the soft limit of its own processes up to the hard one; the driver keeps its own.
        return Finding("open files", Level.WARNING, text, f"ulimit -n {_MIN_FILES}")
    return Finding(
        "open files", Level.WARNING, f"{text}, at most {facts.open_files_hard}", "ask for a higher hard limit"
    )


def _temp_dir(facts: Facts) -> Finding:
    n_bytes = len(facts.ray_temp_dir.rstrip("/").encode())
    if n_bytes <= _MAX_TEMP_BYTES:
        return Finding("Ray's directory", Level.OK, f"{facts.ray_temp_dir}/ray")
    text = f"{facts.ray_temp_dir} has {n_bytes} bytes, at most {_MAX_TEMP_BYTES} leave room for Ray's Unix sockets"
    return Finding("Ray's directory", Level.ERROR, text, "set RAY_TMPDIR to a shorter directory, such as /tmp")


def _ray_address(facts: Facts) -> Finding:
    if not facts.ray_address:
        return Finding("RAY_ADDRESS", Level.OK, "not set: a driver starts its own Ray")
    return Finding("RAY_ADDRESS", Level.OK, f"a driver joins the Ray cluster at {facts.ray_address}")


def _ray_token(facts: Facts) -> Finding:
    if facts.ray_auth_mode.lower() == "token" and not facts.has_ray_token:
        text = "RAY_AUTH_MODE=token, and there is no token"
        fix = "ray get-auth-token --generate, or RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH"
        # A local Ray makes a token by itself; a cluster that runs already has its own.
        return Finding("Ray's token", Level.ERROR if facts.ray_address else Level.WARNING, text, fix)
    state = "found" if facts.has_ray_token else "none; Ray is not asked for one"
    return Finding("Ray's token", Level.OK, state)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB // 10 else f"{n_bytes / (1 << 20):.0f} MiB"
