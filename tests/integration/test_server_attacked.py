"""A driver under attack: many visitors without a token at once, beside a training loop, for a minute."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing
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
# Idle and attacked in turns, as other programs of the machine come and go.
N_ROUNDS = 10
ROOT = Path(__file__).parents[2]


def ask(address: str, token: str, path: str = "/") -> bytes:
    """Return the whole answer to a request with a token, on a connection of its own."""
    parts = urlsplit(address)
    head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as sock:
        sock.sendall(head.encode())
        return b"".join(iter(lambda: sock.recv(65536), b""))


def find_large(address: str, token: str) -> str:
    """Return the path of plotly.js, the largest file that is served without a token."""
    page = ask(address, token, "/timeline").decode()
    begin = page.index("/static/plotly-")
    return page[begin : page.index('"', begin)]


def visit(address: str, token: str, for_s: float) -> list[float]:
    """Open the page twice a second, as a person who reloads would, and return how long each took."""
    took_s, until_s = [], time.monotonic() + for_s
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        answer = ask(address, token)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        took_s.append(time.monotonic() - began_s)
        time.sleep(0.5)
    return took_s


def test_a_training_loop_hardly_notices_an_attack_and_a_token_holder_is_served(tmp_path: Path) -> None:
    command = [sys.executable, attacked_driver.__file__, str(tmp_path / "runs")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log, idle_s, attacked_s = tmp_path / "stderr", list[float](), list[float]()
    round_s = ATTACK_S / N_ROUNDS
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        ) as driver,
    ):
        assert driver.stdin is not None
        assert driver.stdout is not None
        lead, heard = driver.stdin, driver.stdout

        def phase(name: str) -> None:
            lead.write(f"phase {name}\n")
            lead.flush()
            assert heard.readline() == "begun\n"

        opened = json.loads(heard.readline())
        address, token = opened["address"], opened["read"]
        large = find_large(address, token)
        for i in range(N_ROUNDS):
            phase(f"idle {i}")
            idle_s += visit(address, token, round_s)
            attack = [sys.executable, "-m", "tests.attackers", address, large, str(round_s)]
            with subprocess.Popen(attack, cwd=ROOT, stdout=subprocess.PIPE, text=True) as attackers:
                assert attackers.stdout is not None
                assert attackers.stdout.readline() == "begun\n"
                phase(f"attack {i}")
                attacked_s += visit(address, token, round_s)
            assert attackers.returncode == 0
        lead.write("end\n")
        lead.flush()
        phases = json.loads(heard.readline())
        assert driver.wait(60) == 0
    ratios = [phases[f"attack {i}"]["step_ms"] / phases[f"idle {i}"]["step_ms"] for i in range(N_ROUNDS)]
    grown_mb = max(one["rss_mb"] for one in phases.values()) - phases["idle 0"]["rss_mb"]
    with closing(sqlite3.connect(opened["file"])) as file:
        (n_rows,) = file.execute("SELECT count(*) FROM audit_entry").fetchone()
    slowest = f"{sorted(idle_s)[-5:]=} {sorted(attacked_s)[-5:]=} of {len(attacked_s)} pages"
    print(json.dumps(phases), f"{ratios=} {slowest} {grown_mb=} {n_rows=}")
    assert log.read_text(encoding="utf-8") == ""
    assert max(attacked_s) < 1.0 + max(idle_s)
    assert grown_mb < 100
    assert n_rows <= ATTACK_S + 2 * N_ROUNDS + 2
    assert statistics.median(phases[f"attack {i}"]["server_cpu"] for i in range(N_ROUNDS)) < 0.15
    assert statistics.median(ratios) <= 1.05, phases
