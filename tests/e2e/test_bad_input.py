"""What a person gets wrong, on a real Ray: one clear line, a code that is not 0, and nothing left running.

Wrong files, ports and options without Ray are in tests/integration/test_server_cli.py; two of them are here once more,
as a person meets them, in a process of its own.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.e2e.commands import Command

# Each starts a Ray of its own; what the messages say is tested on the local cluster too.
slow = pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make test-slow")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_DRIVER = """
import torch

import core
from core import DataProto, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register


class Rows(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def double(self, batch):
        return batch


class Stillborn(Worker):
    def __init__(self):
        super().__init__()
        if self.rank == 1:
            raise RuntimeError("no weights at step " + str(41 + 1))


core.init(num_cpus=40, num_gpus=4)
print("begun", flush=True)
"""


def driver(folder: Path, last_lines: str) -> str:
    (folder / "driver.py").write_text(_DRIVER + last_lines, encoding="utf-8")
    return "driver.py"


def ours(command: Command) -> list[str]:
    """Return the lines that Podium said, but for where the dashboard and the file are."""
    said = [line for line in command.err.lines if line.startswith("podium: ")]
    return [line for line in said if "dashboard at http" not in line and "run file: " not in line]


@slow
def test_a_pool_larger_than_the_machine_is_refused_with_the_numbers(short_dir: Path) -> None:
    last = "RayWorkerGroup(RayResourcePool([64], name_prefix='big'), RayClassWithInitArgs(Rows))"
    with Command(short_dir, "run", driver(short_dir, last)) as command:
        assert command.wait() == 1
        # The reasons per node are lines of their own below the one that says it all.
        assert len(ours(command)) == 1, command.err.text
        assert "pool big [64] cannot be placed: 64 bundles of" in ours(command)[0]
        assert "4 GPUs available" in command.err.text
        assert "Traceback" not in command.err.text
        assert command.gone()


@slow
def test_a_batch_that_cannot_be_split_is_one_line_with_the_way_out(short_dir: Path) -> None:
    last = """
rows = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Rows))
rows.double(DataProto.from_dict({"x": torch.zeros(7, 1)}))
"""
    with Command(short_dir, "run", driver(short_dir, last)) as command:
        assert command.wait() == 1
        (line,) = ours(command)
        assert "7 rows" in line
        assert "auto_padding" in line
        assert line.endswith(f"[driver.py, line {len((_DRIVER + last).splitlines())}]")
        assert "Traceback" not in command.err.text
        assert command.gone()


def test_a_worker_that_does_not_start_shows_its_traceback_once_and_takes_the_others_with_it(short_dir: Path) -> None:
    last = "RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Stillborn))"
    with Command(short_dir, "run", driver(short_dir, last)) as command:
        assert command.wait() == 1
        assert len(ours(command)) == 1, command.err.text
        assert "rank 1" in ours(command)[0]
        both = command.out.text + command.err.text
        assert both.count("Traceback (most recent call last)") == 1, both
        assert command.err.lines.count("RuntimeError: no weights at step 42") == 1, both
        assert command.gone()


def test_a_script_that_is_not_there_is_one_line_and_starts_nothing(short_dir: Path) -> None:
    with Command(short_dir, "run", "nowhere.py") as command:
        assert command.wait() == 2
        assert command.err.lines == ["podium: cannot run nowhere.py: no such file"]
        assert command.out.lines == []
        assert command.gone()


def test_a_runs_folder_that_cannot_be_made_is_one_line_and_the_script_does_not_begin(short_dir: Path) -> None:
    # In /proc nobody can make a folder, root neither.
    with Command(short_dir, "run", "--runs-dir", "/proc/runs", driver(short_dir, "")) as command:
        assert command.wait() == 1
        assert len(command.err.lines) == 1, command.err.text
        assert command.err.lines[0].startswith("podium: ")
        assert "/proc/runs" in command.err.lines[0]
        assert command.out.lines == []
        assert command.gone()


def test_a_port_in_use_is_one_line_and_leaves_no_file(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["run", "--runs-dir", "none", "--port", port, driver(short_dir, "")]
        with Command(short_dir, *arguments) as command:
            assert command.wait() == 1
            assert len(command.err.lines) == 1, command.err.text
            assert f"port {port} on 127.0.0.1 is in use" in command.err.lines[0]
            assert command.out.lines == []
            assert not list(short_dir.glob("none/*.db"))
            assert command.gone()
