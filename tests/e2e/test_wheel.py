"""The wheel in an empty environment outside any source tree: its commands work, and the sdist builds the same wheel.

``make wheel-test`` and ``make test-slow`` run it: PyTorch and Ray are installed anew, which takes minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.commands import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make wheel-test"),
]

ROOT = Path(__file__).parents[2]
INSTALL_S = 1500.0


@dataclass(frozen=True)
class Installed:
    """An environment with nothing but the wheel and what it needs, and a folder to work in."""

    bin: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return what the commands get: nothing of this environment's Python, nor of Ray or Podium."""
        ours = ("RAY_", "PODIUM_", "PYTHON", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, "RAY_TMPDIR": str(self.folder), "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command: str, timeout_s: float = 600.0) -> str:
        """Run a command of the environment and return what it printed on stdout."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


def pip(python: Path, *arguments: str, cwd: Path = ROOT) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stderr


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(Path(sys.executable), "wheel", "--no-deps", "-w", str(folder), ".")
    return only(folder, "podium-*.whl")


@pytest.fixture(scope="module")
def installed(wheel: Path, short_dir: Path) -> Installed:
    venv.create(short_dir / "venv", with_pip=True)
    folder = short_dir / "work"
    folder.mkdir()
    made = Installed(short_dir / "venv" / "bin", folder)
    pip(made.bin / "python", "install", "-c", str(ROOT / "constraints.txt"), str(wheel), cwd=folder)
    return made


def content_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "build", with_pip=True)
    python = tmp_path / "build" / "bin" / "python"
    pip(python, "install", "hatchling>=1.27")
    command = [str(python), "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=INSTALL_S)
    sdist = only(tmp_path, "podium-*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "/.venv/" in name or name.endswith((".db", ".pyc"))]
    pip(python, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "again"), str(sdist), cwd=tmp_path)
    first, second = content_of(wheel), content_of(only(tmp_path / "again", "podium-*.whl"))
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []


def test_the_wheel_holds_what_is_not_python_too(wheel: Path) -> None:
    names = set(content_of(wheel))
    for folder in ("core", "app", "web", "migrations", "examples"):
        inside = {"migrations": "app/_migrations", "examples": "app/_examples"}.get(folder, folder)
        listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
        wanted = {inside + line.removeprefix(folder) for line in listed.stdout.splitlines()}
        assert wanted, folder
        assert sorted(wanted - names) == []


def test_its_packages_are_those_that_python_finds(installed: Installed) -> None:
    code = "import core, app, web; print(core.__file__, app.__file__, web.__file__)"
    assert installed.run("python", "-c", code).count(str(installed.bin.parent)) == 3


def test_the_demo_runs_to_its_end(installed: Installed) -> None:
    out = installed.run("podium", "demo", "--exit", "--short", "--runs-dir", "runs")
    assert re.search(r"held-out exact match: [\d.]+ before RL", out), out


def test_a_script_runs_and_its_run_is_checked_and_viewed(installed: Installed) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    (installed.folder / "first.py").write_text(first, encoding="utf-8")
    out = installed.run("podium", "run", "--runs-dir", "others", "first.py")
    assert "tensor([ 0.,  3.,  6.,  9., 12., 15., 18., 21., 24., 27.])" in out
    run = only(installed.folder / "others", "*.db")
    assert json.loads(installed.run("podium", "db", "check", "--json", str(run)))["faults"] == []
    with viewed(installed, run) as url:
        browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
        page = browser.open(url, timeout=60).read().decode()
        origin = url.partition("/?")[0]
        assets = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
        assert any("plotly" in path for path in assets), page[:2000]
        for path in assets:
            assert browser.open(origin + path, timeout=60).read()


@contextlib.contextmanager
def viewed(installed: Installed, run: Path) -> Iterator[str]:
    """Run ``podium view`` and yield the URL it prints."""
    log = installed.folder / "view.log"
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [str(installed.bin / "podium"), "view", str(run)],
            cwd=installed.folder,
            env=installed.environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        found = until(
            lambda: re.search(r"(http://127\.0\.0\.1:\d+/\?token=[\w-]+)", log.read_text(encoding="utf-8")),
            "the URL of view",
        )
        yield str(found[1])
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait(60)
