"""The command ``podium``: mostly in this process, where a process of its own proves nothing more."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import app
from app.cli import main, showing
from app.cli.driver import check_script
from app.cli.say import CommandError
from app.server import RunServer
from app.store.reader import Reader
from app.store.runs import run_paths
from core import Controller, RayResourcePool

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PODIUM = [sys.executable, "-m", "app"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("PODIUM_URL", "PODIUM_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    with app.serve(tmp_path / "runs", name="done") as server:
        return server.db_path


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def the_run() -> str:
    """Return how the newest run in ./runs ended."""
    reader = Reader(run_paths(Path("runs"))[0])
    try:
        return reader.run().state
    finally:
        reader.close()


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


# podium run


def test_run_module_passes_on_everything_after_the_modules_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("jobs").mkdir()
    write("jobs/__init__.py", "")
    write("jobs/train.py", "import sys\nfrom . import __name__ as parent\nprint(parent, sys.argv[1:])\nsys.exit(3)")
    assert main(["run", "--runs-dir", "runs", "-m", "jobs.train", "--port", "x", "-m", "lr=1"]) == 3
    captured = capsys.readouterr()
    assert captured.out == "jobs ['--port', 'x', '-m', 'lr=1']\n"
    assert "Traceback" not in captured.err
    (path,) = run_paths(Path("runs"))
    assert "train" in path.name
    assert the_run() == "failed"


def test_a_script_runs_unchanged_with_its_own_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    write("beside.py", "VALUE = 41")
    write("driver.py", "import sys, beside\nprint(__name__, sys.argv, beside.VALUE + 1)")
    before = (list(sys.argv), list(sys.path))
    assert main(["run", "driver.py", "--lr", "1e-3", "--control", "-h"]) == 0
    assert (sys.argv, sys.path) == before
    said = capsys.readouterr()
    script = str(Path("driver.py").resolve())
    assert said.out == f"__main__ {[script, '--lr', '1e-3', '--control', '-h']} 42\n"
    assert len(re.findall(r"http://127\.0\.0\.1:\d+/\?token=\S{43}\n", said.err)) == 1
    file = re.search(r"podium view (\S+)\n", said.err)
    assert file is not None
    assert Path(file[1]).is_file()
    assert the_run() == "ended"


@pytest.mark.parametrize(
    ("text", "code", "said", "state"),
    [
        ("raise SystemExit", 0, "", "ended"),
        ("raise SystemExit(0)", 0, "", "ended"),
        ("raise SystemExit(7)", 7, "", "failed"),
        ("raise SystemExit('no data')", 1, "no data\n", "failed"),
        ("raise KeyboardInterrupt", 130, "podium: interrupted\n", "ended"),
        ("raise SystemExit(143)", 143, "", "ended"),
    ],
)
def test_the_exit_code_is_the_scripts_own(
    text: str, code: int, said: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", write("driver.py", text)]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert the_run() == state


def test_a_runs_folder_deleted_under_the_driver_is_told_and_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write("driver.py", "import shutil\nshutil.rmtree('runs')")]) == 0
    error = capsys.readouterr().err
    assert "was deleted during the run; its data is lost" in error
    assert "podium view" not in error


def test_a_scripts_error_is_shown_once_and_without_our_frames(capsys: pytest.CaptureFixture[str]) -> None:
    text = """def inner():
    raise ValueError('seven')
try:
    inner()
except ValueError as error:
    raise KeyError('x') from error
"""
    assert main(["run", write("driver.py", text)]) == 1
    error = capsys.readouterr().err
    assert error.count("ValueError: seven") == error.count("KeyError: 'x'") == 1
    assert "line 2, in inner" in error
    assert "runpy" not in error
    assert "app/cli" not in error
    assert the_run() == "failed"


def test_a_script_that_is_no_python_is_shown_without_our_frames(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write("driver.py", "x = = 1")]) == 1
    error = capsys.readouterr().err
    assert "SyntaxError" in error
    assert "runpy" not in error


def test_an_error_of_ours_is_one_line_with_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    text = "from core.errors import PlacementError\nraise PlacementError('pool of 64 does not fit: 8 GPUs here')"
    assert main(["run", write("driver.py", text)]) == 1
    error = capsys.readouterr().err
    assert "podium: pool of 64 does not fit: 8 GPUs here [driver.py, line 2]\n" in error
    assert "Traceback" not in error
    assert the_run() == "failed"


def test_a_workers_traceback_is_shown_once_under_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "from core.errors import WorkerStartError\n"
        "trace = 'Traceback of the worker\\nOSError: x'\n"
        "raise WorkerStartError('rank 1 of rollout did not start', traceback_text=trace)"
    )
    assert main(["run", write("driver.py", text)]) == 1
    error = capsys.readouterr().err
    assert "podium: rank 1 of rollout did not start [driver.py, line 3]\nTraceback of the worker\nOSError: x\n" in error
    assert error.count("OSError: x") == 1


def test_a_real_uneven_split_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = """
import torch
from core import *

class W(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def f(self, batch): return batch

with Controller.local():
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(W))
    group.f(DataProto.from_dict({"x": torch.zeros(3, 1)}))
"""
    assert main(["run", write("driver.py", text)]) == 1
    error = capsys.readouterr().err
    assert re.search(r"podium: .*3.*\[driver\.py, line 11\]\n", error)
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["run", "nowhere.py"], 2, "no such file"),
        (["run", "."], 2, "is a directory"),
        (["run", "--host", "0.0.0.0", "driver.py"], 2, "--allow-remote"),
        (["run", "--port", "70000", "driver.py"], 2, "70000"),
        (["run", "--runs-dir", "driver.py/runs", "driver.py"], 1, "cannot write runs"),
        (["view", "nowhere.db"], 1, "nowhere.db"),
        (["view", "driver.py"], 1, "is not a Podium run file"),
        (["view", "--host", "10.0.0.1", "driver.py"], 2, "--allow-remote"),
        (["pools", "list"], 2, "--url"),
        (["pools", "list", "--url", "http://127.0.0.1:9"], 5, "cannot reach"),
        (["pools", "pause", "p", "--url", "http://h/?token=abc"], 2, "--token-file"),
        (["pools", "list", "--url", "http://h", "--token-file", "none"], 2, "token file"),
        (["runs", "list", "--runs-dir", "driver.py"], 1, "cannot read the runs"),
    ],
)
def test_bad_input_is_one_clear_line_and_a_code(
    arguments: list[str], code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("driver.py", "print('ran')")
    assert main(arguments) == code
    said = capsys.readouterr()
    assert word in one_line(said.err)
    assert said.out == ""


def test_a_port_in_use_is_one_clear_line(capsys: pytest.CaptureFixture[str], run_file: Path) -> None:
    write("driver.py", "print('ran')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (["run", "--port", port, "driver.py"], ["view", "--port", port, str(run_file)]):
            assert main(command) == 1
            said = capsys.readouterr()
            assert f"port {port} on 127.0.0.1 is in use" in one_line(said.err)
            assert said.out == ""


def test_a_missing_argument_or_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["run"], ["nonsense"], ["view", "a", "b"], ["run", "--num-gpus", "many", "x.py"]):
        assert main(arguments) == 2
        assert "Traceback" not in capsys.readouterr().err


# Case 15 of the field (own_app_package).
@pytest.mark.parametrize("name", ["core", "app", "web"])
@pytest.mark.parametrize("file", ["{}/__init__.py", "{}.py", "{}/rewards.py"])
def test_own_app_package_beside_the_script_is_named_before_anything_starts(
    capsys: pytest.CaptureFixture[str], name: str, file: str
) -> None:
    path = Path(file.format(name))
    path.parent.mkdir(exist_ok=True)
    write(str(path), "")
    assert main(["run", write("driver.py", "print('ran')")]) == 2
    said = one_line(capsys.readouterr().err)
    assert f"has the name of Podium's package {name!r}" in said
    assert "rename it, or move the driver script" in said
    assert not Path("runs").exists()


def test_own_app_package_is_no_folder_of_pages(capsys: pytest.CaptureFixture[str]) -> None:
    Path("web").mkdir()
    write("web/index.html", "<p>mine</p>")
    assert main(["run", write("driver.py", "print('ran')")]) == 0
    assert "ran" in capsys.readouterr().out


def test_our_own_examples_beside_our_own_core_are_no_such_case(tmp_path: Path) -> None:
    script = ROOT / "core" / "__init__.py"
    assert check_script(script).file == script
    with pytest.raises(CommandError):
        check_script(tmp_path / "none.py")


def test_a_strangers_core_is_named_when_it_comes_first() -> None:
    Path("core").mkdir()
    write("core/__init__.py", "")
    code = "import sys; sys.path.insert(0, '.'); import app; app.serve"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert "Podium needs its own package 'core'" in done.stderr
    assert "rename your own 'core'" in done.stderr


# podium demo


def test_the_demo_finds_its_driver_in_the_source_tree() -> None:
    assert showing._demo_script() == ROOT / "examples" / "arithmetic_rl.py"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_control_token_is_printed_on_a_terminal_only(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import pathlib
for suffix in (".token", ".control-token"):
    print(next(pathlib.Path("runs").glob(f"*.db{suffix}")).read_text(encoding="utf-8").strip())
"""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["run", "--control", write("driver.py", text)]) == 0
    said = capsys.readouterr()
    read, control = said.out.split()
    assert (control in said.err) is terminal
    assert (read in said.err) is not terminal
    assert (".db.control-token" in said.err) is not terminal


def test_on_a_terminal_the_dashboard_stays_until_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(write("driver.py", "print('done')"))
    server = app.serve("runs")

    def interrupt() -> None:
        while "dashboard still running" not in (said := capsys.readouterr().err):
            heard.append(said)
            time.sleep(0.05)
        with urllib.request.urlopen(f"{server.address}healthz", timeout=5) as answer:
            heard.append(answer.read().decode())
        os.kill(os.getpid(), signal.SIGINT)

    heard: list[str] = []
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert showing._conduct(server, check_script(script), [], stay=True) == 0
    thread.join(5)
    assert heard[-1] == "ok"
    assert the_run() == "ended"


# podium view, podium runs


@pytest.mark.parametrize(("command", "path"), [("view", ""), ("serve", "runs/{}/")])
def test_a_finished_run_is_shown_without_ray_until_the_command_is_told_to_end(
    command: str, path: str, run_file: Path
) -> None:
    code = (
        "import sys; from app.cli import main; code = main(sys.argv[1:]);"
        "print([name for name in ('app.server', 'ray', 'core.cluster.on_ray', 'plotly') if name in sys.modules], code)"
    )
    viewer = subprocess.Popen(
        [sys.executable, "-c", code, command, str(run_file if command == "view" else run_file.parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert viewer.stderr is not None
    try:
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=(\S+)", viewer.stderr.readline())
        assert found is not None
        url = f"{found[1]}/{path.format(run_file.name)}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {found[2]}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert b"Wall time by phase" in answer.read()
        assert "Ctrl-C" in viewer.stderr.readline()
        viewer.send_signal(signal.SIGTERM)
        out, _ = viewer.communicate(timeout=20)
    finally:
        viewer.kill()
    assert out == "['app.server'] 0\n"


def test_runs_are_listed_newest_first_for_people_and_programs(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("runs/broken.db", "no run")
    assert main(["runs", "list", "--json"]) == 0
    said = capsys.readouterr()
    listed = json.loads(said.out)
    assert [(one["name"], one["state"], one["file"]) for one in listed] == [
        ("done", "ended", str(run_file.relative_to(tmp_path)))
    ]
    assert "broken.db" in said.err
    assert main(["runs", "list"]) == 0
    assert "done" in capsys.readouterr().out


# podium pools


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    with (
        Controller.local(),
        app.serve(tmp_path / "runs", control=True) as running,
        RayResourcePool([2], name_prefix="gpus"),
    ):
        yield running


def test_pools_are_listed_paused_and_resumed(server: RunServer, capsys: pytest.CaptureFixture[str]) -> None:
    token = f"{server.db_path}.control-token"
    at = ["--url", server.address, "--token-file", token, "--json"]
    assert main(["pools", "list", *at]) == 0
    pool = json.loads(capsys.readouterr().out)[0]
    assert (pool["state"], pool["world_size"]) == ("pending", 2)
    assert main(["pools", "pause", pool["name"], *at, "--wait", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "succeeded"
    assert main(["pools", "resume", pool["name"], *at, "--generation", str(pool["generation"] + 7)]) == 3
    assert "generation" in one_line(capsys.readouterr().err)
    assert main(["pools", "resume", pool["name"], *at]) == 0
    assert main(["pools", "pause", "nothing", *at]) == 1
    capsys.readouterr()
    assert main(["pools", "list", "--url", server.address, "--token-file", token]) == 0
    assert re.search(r"NAME +STATE.*\n\S+ +pending", capsys.readouterr().out)


def test_the_client_tells_a_wrong_token_from_a_read_token(
    server: RunServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODIUM_URL", server.address)
    assert main(["pools", "list"]) == 4
    monkeypatch.setenv("PODIUM_TOKEN", server.token)
    assert main(["pools", "list"]) == 0
    capsys.readouterr()
    assert main(["pools", "pause", "gpus"]) == 4
    assert "control token" in one_line(capsys.readouterr().err)


def test_the_client_says_when_it_is_not_podium_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert main(["pools", "list", "--url", f"http://127.0.0.1:{stranger.getsockname()[1]}"]) == 5
        thread.join(5)
    assert "is not a Podium server" in one_line(capsys.readouterr().err)


def test_ctrl_c_ends_the_script_the_server_and_the_record(tmp_path: Path) -> None:
    write("driver.py", "import sys, time\nprint('working', flush=True)\ntime.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [*PODIUM, "run", "driver.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert driver.stdout is not None
    try:
        assert driver.stdout.readline() == "working\n"
        began_s = time.monotonic()
        driver.send_signal(signal.SIGINT)
        _, error = driver.communicate(timeout=20)
        assert time.monotonic() - began_s < 10
    finally:
        driver.kill()
    assert driver.returncode == 130
    assert "podium: interrupted" in error
    assert "Traceback" not in error
    assert the_run() == "ended"
    assert not list((tmp_path / "runs").glob("*token"))
