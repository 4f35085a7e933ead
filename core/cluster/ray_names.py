"""Names and words of a cluster: what ours are called there, and what its own texts say."""

from __future__ import annotations

import re
import uuid

from core.cluster.base import ReserveRequest
from core.errors import ClusterUnreachableError, DeathKind, UnknownNameError, UsageError, WorkerDiedError


def native_name(request: ReserveRequest, node_index: int) -> str:
    """Return a name that no other driver of this namespace has, nor a worker of ours that leads workers of its own.

    Only what outlives the driver keeps a plain name: it must be found again by it.
    """
    name = f"{request.pool}_{node_index}"
    return name if request.lifetime else f"{name}#{uuid.uuid4().hex[:8]}"


def shown_name(name: str) -> str:
    """Return a placement group's name for people, without what makes ours unique."""
    return re.sub(r"#[0-9a-f]{8}$", "", name) or "an unnamed placement group"


def death_in(text: str, is_unreachable: bool) -> WorkerDiedError:
    """Return the error for a death that Ray's text reports."""
    name = re.search(r"\bname: (\S+)", text)
    pid = re.search(r"\bpid: (\d+)", text)
    address = re.search(r"\bip: (\S+)", text)
    return WorkerDiedError(
        text,
        worker=name.group(1) if name else "",
        pid=int(pid.group(1)) if pid else 0,
        node=address.group(1) if address else "",
        kind=DeathKind.UNREACHABLE if is_unreachable else DeathKind.UNKNOWN,
    )


def name_taken(name: str) -> UsageError:
    """Return the error for a worker whose name another has."""
    return UsageError(
        f"there is a worker named {name} already; give the group another name_prefix, or close the group that has it"
    )


def unknown_name(name: str, namespace: str) -> UnknownNameError:
    """Return the error for a name that no worker has."""
    return UnknownNameError(
        f"no worker named {name!r} lives in Ray's namespace {namespace!r}; a driver that looks for another's workers "
        f"must be in the same: core.init(namespace=...) in both",
        name=name,
    )


def was_shut_down() -> ClusterUnreachableError:
    """Return the error for a driver that goes on after Ray has ended."""
    return ClusterUnreachableError(
        "Ray was shut down while this driver still used it, and its workers with it; leave ray.shutdown() to the end "
        "of the script"
    )


def is_forked(pid: int) -> ClusterUnreachableError:
    """Return the error for a child that uses what its parent, a driver or a worker, had of Ray when it forked."""
    return ClusterUnreachableError(
        f"this process was forked from process {pid}, whose connection to Ray it cannot use; call workers in the "
        f"parent, or start the process with multiprocessing's 'spawn' and connect there"
    )
