"""The door that a server listens at: a port of this machine, or a unix socket for one user alone."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from core.errors import PodiumError


@dataclass(eq=False)
class ServerStartError(PodiumError):
    """The server could not listen at ``host`` and ``port``; ``reason`` is the system's own word for why."""

    host: str = ""
    port: int = 0
    reason: str = ""


def bind_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens at ``port`` of ``host``.

    Raises:
        ServerStartError: The port is in use, or the host is not of this machine.
    """
    # The protocol is named since asyncio turns Nagle's algorithm off only then; it would cost 40 ms an answer.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        # Listening already: two servers could otherwise bind one port and the second would fail on its thread.
        sock.listen(128)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        way_out = "choose another with --port, or 0 for a free one"
        said = {
            errno.EADDRINUSE: f"port {port} on {host} is in use by another program; {way_out}",
            errno.EACCES: f"port {port} on {host} requires privileges that you do not have; {way_out}",
        }.get(error.errno or 0, f"cannot listen on {host} port {port}: {reason}")
        raise ServerStartError(said, host=host, port=port, reason=reason) from error
    return sock


def bind_uds(path: str) -> socket.socket:
    """Return a unix socket at ``path`` that only this user can open; one that a dead server left is taken over.

    Raises:
        ServerStartError: Another server listens there, something else is there, or the folder cannot be written.
    """
    _make_way(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        # Nobody gets in before ``listen``, so there is no moment at which others could.
        os.chmod(path, 0o600)
        sock.listen(128)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ServerStartError(f"cannot listen on the socket {path}: {reason}", host=path, reason=reason) from error
    return sock


def forget_uds(path: str) -> None:
    """Remove the socket's file, if it is still one."""
    file = Path(path)
    if file.is_socket():
        file.unlink(missing_ok=True)


def _make_way(path: str) -> None:
    """Remove what a dead server left at ``path``; refuse anything else that is there."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ServerStartError(f"{path} exists and is not a socket; choose another --uds path", host=path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            reason = error.strerror or str(error)
            raise ServerStartError(f"cannot use the socket {path}: {reason}", host=path, reason=reason) from error
    raise ServerStartError(f"another server listens on {path}; choose another --uds", host=path)
