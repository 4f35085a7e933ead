"""Visitors without a token that want no answer, 154 at once: ``python -m tests.attackers ADDRESS PATH SECONDS``.

``PATH`` is the largest file that the server gives to everybody. Prints "begun" first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

_PAUSE_S = 0.5


async def stand_still(sock: socket.socket, host: str, path: str) -> None:
    """Ask for a large file and read nothing."""
    await send(sock, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    while True:
        await asyncio.sleep(1.0)
        # Nothing is read, so only sending tells that the other side has closed.
        await send(sock, b"x")


async def send_half(sock: socket.socket, host: str) -> None:
    """Send half a head."""
    await send(sock, f"GET / HTTP/1.1\r\nHost: {host}\r\n".encode())
    await closed(sock)


async def post(sock: socket.socket, host: str) -> None:
    """Try to change something again and again."""
    body = b'{"deadline_s": 5}'
    head = (
        f"POST /api/v1/resource-pools/pool/pause HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    await repeat(sock, head.encode() + body)


async def guess(sock: socket.socket, host: str) -> None:
    """Try tokens."""
    await repeat(sock, f"GET /?token={random.random()} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


async def confuse(sock: socket.socket, host: str) -> None:
    """Send what is not HTTP, or HTTP that can be read in two ways."""
    head = f"POST / HTTP/1.1\r\nHost: {host}\r\n"
    choices = [
        os.urandom(200),
        (head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").encode(),
        (head + "a: b\r\n" * 3000 + "\r\n").encode(),
        (head + "Content-Length: 1000000000\r\n\r\n").encode() + b"x" * 1_000_000,
    ]
    await send(sock, random.choice(choices))
    await closed(sock)


async def send(sock: socket.socket, data: bytes) -> None:
    """Send all of ``data``."""
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def closed(sock: socket.socket) -> None:
    """Wait until the other side closes."""
    while await asyncio.get_running_loop().sock_recv(sock, 65536):
        pass


async def repeat(sock: socket.socket, request: bytes) -> None:
    """Send ``request`` once its answer is there, again and again."""
    while True:
        await send(sock, request)
        if not await asyncio.get_running_loop().sock_recv(sock, 65536):
            return
        await asyncio.sleep(0.02)


async def attack(address: str, large: str, for_s: float) -> None:
    """Run all attackers; each opens a new connection half a second after the last one was closed."""
    parts, until_s = urlsplit(address), time.monotonic() + for_s

    async def keep_on(attacker: Callable[..., Awaitable[None]], *more: str) -> None:
        while time.monotonic() < until_s:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(until_s - time.monotonic()):
                    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
                    await attacker(sock, parts.netloc, *more)
            sock.close()
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(
        *(keep_on(stand_still, large) for _ in range(90)),
        *(keep_on(send_half) for _ in range(40)),
        *(keep_on(post) for _ in range(8)),
        *(keep_on(guess) for _ in range(8)),
        *(keep_on(confuse) for _ in range(8)),
    )


if __name__ == "__main__":
    print("begun", flush=True)
    asyncio.run(attack(sys.argv[1], sys.argv[2], float(sys.argv[3])))
