"""What the doctor makes of a machine, and one look at the machine that runs the tests."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import main
from app.doctor import Facts, Finding, Level, check_all
from app.doctor.facts import Limits, Requirement, own_group, parse_bytes, parse_cpus

GIB = 1 << 30
SOUND = Facts(
    python="3.11.7",
    python_wanted=">=3.11",
    requirements=(Requirement("torch", ">=2.6,<3", "2.13.0+cpu"),),
    shadows=(),
    port_error="",
    runs_dir=Path("runs"),
    runs_error="",
    runs_filesystem="ext4",
    runs_free_bytes=100 * GIB,
    shm_bytes=8 * GIB,
    limits=Limits(8, 8, None, 8, 16 * GIB, None, 16 * GIB),
    open_files=65536,
    open_files_hard=65536,
    ray_temp_dir="/tmp",
    ray_address="",
    ray_auth_mode="",
    has_ray_token=False,
)
TORCH = SOUND.requirements[0]


def found(facts: Facts, name: str) -> Finding:
    (one,) = [finding for finding in check_all(facts) if finding.name == name]
    return one


def test_a_sound_machine_is_ok_in_every_line() -> None:
    assert {one.level for one in check_all(SOUND)} == {Level.OK}


@pytest.mark.parametrize(
    ("facts", "name", "level", "text", "fix"),
    [
        (replace(SOUND, python="3.10.13"), "Python", Level.ERROR, "needs >=3.11", "virtual environment"),
        (
            replace(SOUND, requirements=(replace(TORCH, installed=""),)),
            "torch",
            Level.ERROR,
            "not installed",
            "pip install 'torch'",
        ),
        (
            replace(SOUND, requirements=(replace(TORCH, installed="2.5.1"),)),
            "torch",
            Level.ERROR,
            "2.5.1; Podium needs >=2.6,<3",
            "pip install 'torch>=2.6,<3'",
        ),
        (replace(SOUND, shadows=(Path("/x/app.py"),)), "packages", Level.ERROR, "/x/app.py", "rename"),
        (replace(SOUND, port_error="Address already in use"), "port", Level.ERROR, "already in use", "another port"),
        (replace(SOUND, runs_error="Read-only file system"), "runs directory", Level.ERROR, "Read-only", "--runs-dir"),
        (replace(SOUND, runs_filesystem="nfs4"), "file system", Level.WARNING, "nfs4", "local directory"),
        (replace(SOUND, runs_free_bytes=5 << 20), "disk space", Level.WARNING, "5 MiB free", "space"),
        (replace(SOUND, shm_bytes=64 << 20), "shared memory", Level.WARNING, "Docker's default", "--shm-size"),
        (replace(SOUND, shm_bytes=None), "shared memory", Level.WARNING, "no /dev/shm", ""),
        (
            replace(SOUND, limits=Limits(64, 64, 1.5, 64, 16 * GIB, None, 16 * GIB)),
            "CPUs",
            Level.WARNING,
            "1.5 usable of 64; Ray counts 64",
            "--num-cpus 1",
        ),
        (
            replace(SOUND, limits=Limits(64, 4, None, 64, 16 * GIB, None, 16 * GIB)),
            "CPUs",
            Level.WARNING,
            "4 usable of 64; Ray counts 64",
            "--num-cpus 4",
        ),
        (
            replace(SOUND, limits=Limits(8, 8, None, 8, 16 * GIB, 2 * GIB, 16 * GIB)),
            "memory",
            Level.WARNING,
            "2.0 GiB usable of 16.0 GiB; Ray counts 16.0 GiB",
            "control group",
        ),
        (replace(SOUND, open_files=1024), "open files", Level.WARNING, "limit 1024", "ulimit -n"),
        (
            replace(SOUND, open_files=256, open_files_hard=256),
            "open files",
            Level.WARNING,
            "at most 256",
            "hard limit",
        ),
        (replace(SOUND, ray_temp_dir="/scratch/" + "x" * 40), "Ray's directory", Level.ERROR, "49 bytes", "RAY_TMPDIR"),
        (replace(SOUND, ray_auth_mode="token"), "Ray's token", Level.WARNING, "no token", "get-auth-token"),
        (
            replace(SOUND, ray_auth_mode="token", ray_address="10.0.0.1:6379"),
            "Ray's token",
            Level.ERROR,
            "no token",
            "get-auth-token",
        ),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(facts: Facts, name: str, level: Level, text: str, fix: str) -> None:
    finding = found(facts, name)
    assert finding.level is level
    assert text in finding.text
    assert fix in finding.fix
    others = [one for one in check_all(facts) if one.name != name]
    assert all(one.level is Level.OK for one in others)


def test_limits_that_ray_sees_itself_are_ok() -> None:
    container = replace(SOUND, limits=Limits(64, 64, 2, 2, 64 * GIB, 4 * GIB, 4 * GIB))
    assert (found(container, "CPUs").level, found(container, "memory").level) == (Level.OK, Level.OK)


def test_control_groups_of_both_versions_are_read() -> None:
    assert own_group("0::/user.slice/job.scope\n", "cpu") == "/user.slice/job.scope"
    first = "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/def\n0::/init.scope\n"
    assert (own_group(first, "memory"), own_group(first, "cpu")) == ("/docker/abc", "/docker/def")
    assert own_group("", "cpu") == "/"
    assert [parse_cpus(text) for text in ("150000 100000", "max 100000", "-1 100000", "", " ")] == [1.5] + [None] * 4
    assert [parse_bytes(text) for text in ("1024\n", "max\n", "9223372036854771712", "")] == [1024, None, None, None]


def test_the_command_looks_at_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["doctor", "--json"])
    lines = json.loads(capsys.readouterr().out)
    assert {"Python", "ray", "torch", "port", "shared memory", "CPUs", "open files"} <= {line["name"] for line in lines}
    assert code == int(any(line["level"] == "error" for line in lines))
    (tmp_path / "web.py").write_text("", encoding="utf-8")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("", encoding="utf-8")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert str(tmp_path / "web.py") in text
    assert str(tmp_path / "core" / "__init__.py") in text
    assert not (tmp_path / "runs").exists()


def test_a_port_in_use_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["doctor", "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().out
