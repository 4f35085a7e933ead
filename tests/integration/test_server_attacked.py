"""A driver under attack: many visitors without a token at once, beside a training loop, for a minute."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import attacked_driver

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make test-slow"),
]
ATTACK_S = float(os.environ.get("PODIUM_ATTACK_S", "60"))
Attacker = Callable[[socket.socket, str], Awaitable[None]]


async def stand_still(sock: socket.socket, host: str, path: str) -> None:
    """Ask for a large file and read nothing."""
    await send(sock, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await closed(sock, drain=False)


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
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def closed(sock: socket.socket, *, drain: bool = True) -> None:
    """Wait until the other side closes; without ``drain`` nothing is read, and it is noticed by sending."""
    if drain:
        while await asyncio.get_running_loop().sock_recv(sock, 65536):
            pass
        return
    while True:
        await asyncio.sleep(1.0)
        await send(sock, b"x")


async def repeat(sock: socket.socket, request: bytes) -> None:
    """Send ``request`` once its answer is there, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        await send(sock, request)
        if not await loop.sock_recv(sock, 65536):
            return
        await asyncio.sleep(0.02)


async def attack(address: str, large: str, until_s: float) -> None:
    """Run all attackers until ``until_s``; each opens a new connection half a second after the last one was closed."""
    parts = urlsplit(address)

    async def one(attacker: Callable[..., Awaitable[None]], *more: str) -> None:
        while time.monotonic() < until_s:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(until_s - time.monotonic()):
                    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
                    await attacker(sock, parts.netloc, *more)
            sock.close()
            await asyncio.sleep(0.5)

    await asyncio.gather(
        *(one(stand_still, large) for _ in range(90)),
        *(one(send_half) for _ in range(40)),
        *(one(post) for _ in range(8)),
        *(one(guess) for _ in range(8)),
        *(one(confuse) for _ in range(8)),
    )


async def visit(address: str, token: str, until_s: float, took_s: list[float]) -> None:
    """Open the page with a token, on a new connection every half second, as a person who reloads would."""
    parts = urlsplit(address)
    head = f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(head.encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        took_s.append(time.monotonic() - began_s)
        await asyncio.sleep(0.5)


def test_a_training_loop_hardly_notices_an_attack_and_a_token_holder_is_served(tmp_path: Path) -> None:
    command = [sys.executable, attacked_driver.__file__, str(tmp_path / "runs")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        lead, heard = driver.stdin, driver.stdout

        def phase(name: str) -> None:
            lead.write(f"phase {name}\n")
            lead.flush()
            assert heard.readline() == "begun\n"

        opened = json.loads(heard.readline())
        large = find_large(opened["address"], opened["read"])
        n_rounds, took_s = 3, list[float]()
        for i in range(n_rounds):
            phase(f"idle {i}")
            time.sleep(ATTACK_S / n_rounds / 2)
            phase(f"attack {i}")

            async def siege() -> None:
                until_s = time.monotonic() + ATTACK_S / n_rounds
                # A loop of its own: a visitor is not slow because the attackers share its thread.
                visitor = asyncio.to_thread(asyncio.run, visit(opened["address"], opened["read"], until_s, took_s))
                await asyncio.gather(attack(opened["address"], large, until_s), visitor)

            asyncio.run(siege())
        lead.write("end\n")
        lead.flush()
        phases = json.loads(heard.readline())
        assert driver.wait(60) == 0
    print(json.dumps(phases, indent=1), "page p100", max(took_s), "n", len(took_s))
    ratio = min(phases[f"attack {i}"]["step_ms"] / phases[f"idle {i}"]["step_ms"] for i in range(n_rounds))
    grown_mb = max(one["rss_mb"] for one in phases.values()) - phases["idle 0"]["rss_mb"]
    with sqlite3.connect(opened["file"]) as file:
        (n_rows,) = file.execute("SELECT count(*) FROM audit_entry").fetchone()
    file.close()
    assert max(took_s) < 1.0
    assert grown_mb < 100
    assert n_rows <= ATTACK_S + 2 * n_rounds + 2
    assert ratio <= 1.05, phases


def find_large(address: str, token: str) -> str:
    """Return the path of plotly.js, the largest file that is served without a token."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as sock:
        head = f"GET /timeline HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
        sock.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
        page = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    begin = page.index("/static/plotly-")
    return page[begin : page.index('"', begin)]
