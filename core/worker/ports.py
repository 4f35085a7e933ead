"""A free port that stays free until the one who asked for it listens on it."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from core.cluster.fetching import node_address, remote_function
from core.errors import UsageError


def hold_port(candidates: Iterable[int] = (0,)) -> socket.socket:
    """Bind the first free port of ``candidates`` (0: any) without listening.

    While the socket is open the kernel does not assign the port, and a bind to it fails, except for a listener with
    SO_REUSEADDR, such as ``torch.distributed``'s store. So two groups can never get the same port.

    Raises:
        UsageError: None of the candidates is free.
    """
    tried = 0
    for port in candidates:
        tried += 1
        family = socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
        for address_family, address in ((family, "::"), (socket.AF_INET, "")):
            if address_family == socket.AF_INET and address == "::":
                continue
            held = socket.socket(address_family, socket.SOCK_STREAM)
            try:
                if address_family == socket.AF_INET6:
                    held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                # Only after the bind: two sockets that both have it before may bind one port as long as none listens.
                held.bind((address, port))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError:
                held.close()
                continue
            return held
    raise UsageError(f"none of the {tried} ports offered for MASTER_PORT is free; widen master_port_range")


_MAX_KEPT = 64
_kept: deque[socket.socket] = deque()
_keeping = threading.Lock()


def keep_port(candidates: Iterable[int] = (0,)) -> int:
    """Return a free port that this process holds until it ends; see ``hold_port``.

    Of many ports that are asked for the last 64 are held: those before are in use by then, or given up.

    Raises:
        UsageError: None of the candidates is free.
    """
    held = hold_port(candidates)
    with _keeping:
        _kept.append(held)
        dropped = _kept.popleft() if len(_kept) > _MAX_KEPT else None
    if dropped is not None:
        dropped.close()
    return int(held.getsockname()[1])


class _AddressAndPort:
    """Where a rendezvous can be: called here, or by ``.remote()`` in a process that the cluster chooses."""

    def __call__(self, master_port_range: Sequence[int] | None = None) -> tuple[str, str]:
        """Return this node's address and a free port that this process holds; see ``keep_port``.

        Args:
            master_port_range: ``(first, end)`` of the ports to choose from; any when not given.

        Raises:
            UsageError: None of them is free.
        """
        return address_and_port(master_port_range)

    def remote(self, master_port_range: Sequence[int] | None = None) -> Any:
        """Return a reference of what the call gives in another process, on Ray."""
        return remote_function(address_and_port).remote(master_port_range)

    def options(self, **options: Any) -> Any:
        """Return the remote function with options of Ray's, such as a scheduling strategy."""
        return remote_function(address_and_port).options(**options)


def address_and_port(master_port_range: Sequence[int] | None = None) -> tuple[str, str]:
    """Return this node's address and a free port; see ``get_master_addr_port``."""
    candidates = (0,) if master_port_range is None else range(*master_port_range)
    return node_address().strip("[]"), str(keep_port(candidates))


get_master_addr_port = _AddressAndPort()
