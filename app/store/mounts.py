"""On what kind of filesystem a path is: a write-ahead log needs memory that everybody who opens the file shares."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_NETWORK = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
    }
    | {"nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"}
)
# Filesystems in user space are taken for remote, but for those known to be on this machine.
_LOCAL_FUSE = frozenset(
    {"fuse.fuse-overlayfs", "fuse.unionfs", "fuse.mergerfs", "fuse.bindfs", "fuse.lxcfs", "fuseblk"}
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of ``/proc/mounts``: where, and of which type."""

    point: str
    kind: str


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Return the mounts that the text of ``/proc/mounts`` names, in its order, less lines that make no sense."""
    lines = [line.split(" ") for line in text.splitlines()]
    return tuple(Mount(_unescaped(parts[1]), parts[2]) for parts in lines if len(parts) >= 3)


def kind_of(path: str, mounts: Iterable[Mount]) -> str:
    """Return the type of the filesystem that holds the absolute ``path``, empty when no mount does.

    The longest mount point counts, and of several at one place the last, which hides those before it.
    """
    best = Mount("", "")
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best.kind


def is_network(kind: str) -> bool:
    """Return whether another machine may have a filesystem of that type open too."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def filesystem_of(path: Path, table: Path = Path("/proc/mounts")) -> str:
    """Return the type of the filesystem of ``path``, empty where it is unknown."""
    try:
        return kind_of(os.path.realpath(path), parse_mounts(table.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return ""


def _unescaped(text: str) -> str:
    r"""Return a mount point as it is; the table writes a space as ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
