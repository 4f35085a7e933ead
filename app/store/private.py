"""Makes files and folders that only their owner can open, whatever the umask and whatever lies there already."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FILE, _FOLDER = 0o600, 0o700


def open_private(path: Path, flags: int) -> int:
    """Open a file of ours to write, made if it is missing, and return its descriptor; nobody else can open it.

    In a shared folder somebody else may have put a link or a file of their own there: neither is followed or filled.

    Raises:
        OSError: It cannot be made, or is something else than a file of this user.
    """
    handle = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _FILE)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
            raise OSError(errno.EPERM, "a file of that name exists that is not private to you", str(path))
        os.fchmod(handle, _FILE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_beside(path: Path) -> int:
    """Open a file that lies beside a run's file to read, and return its descriptor: no link, and nothing that hangs.

    Raises:
        OSError: It is not there, or no plain file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def make_private_dir(path: Path) -> bool:
    """Make a folder, and those above it, that only this user can enter; return whether it was not there before.

    Raises:
        OSError: It cannot be made.
    """
    if path.is_dir():
        return False
    make_private_dir(path.parent)
    os.mkdir(path, _FOLDER)
    os.chmod(path, _FOLDER)
    return True


def open_to_others(folder: Path) -> str:
    """Return in words why other users could tamper with a folder's files, empty when they cannot."""
    found = folder.stat()
    if found.st_uid not in {os.geteuid(), 0}:
        return f"it is owned by user {found.st_uid}, who can replace the files in it"
    if found.st_mode & stat.S_IWOTH:
        return "every user can write to it"
    return ""
