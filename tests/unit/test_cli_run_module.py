"""``podium run -m``: a module is found and run as ``python -m`` does it. Server and record have tests of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.driver import check_module, run_program, show_error
from app.cli.say import CommandError

FACTS = """
import json, os, sys
from .recipe import FACTOR
print(json.dumps({
    "name": __name__, "package": __package__, "spec": __spec__.name, "file": __file__,
    "argv": sys.argv, "path": sys.path[0], "main": sys.modules["__main__"].__dict__ is globals(), "factor": FACTOR,
}))
"""


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("trainers").mkdir()
    write("trainers/__init__.py", "")
    write("trainers/recipe.py", "FACTOR = 3\n")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainers"]:
        del sys.modules[name]


def write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("module", "file"), [("trainers.main", "main.py"), ("trainers", "__main__.py")])
def test_run_module_gives_a_program_what_python_m_gives_it(
    module: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f"trainers/{file}", FACTS)
    arguments = ["a.b=1", "--flag", "-m", "x//y"]
    plain = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    before = (list(sys.argv), list(sys.path), sys.modules["__main__"])
    outcome = run_program(check_module(module), arguments)
    assert (outcome.code, outcome.error) == (0, None)
    assert json.loads(capsys.readouterr().out) == json.loads(plain.stdout)
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_a_module_is_found_without_importing_its_package() -> None:
    write("trainers/__init__.py", "raise RuntimeError('imported')")
    write("trainers/main.py", "")
    assert check_module("trainers.main").file == Path("trainers/main.py").resolve()
    assert run_program(check_module("trainers.main"), []).code == 1


def test_a_program_that_changes_its_folder_for_each_job_runs_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Hydra's multirun does so: one process, several jobs, a folder for each, overrides taken from ``sys.argv``."""
    job = (
        "import os, pathlib, sys\nfrom .recipe import FACTOR\nhome = os.getcwd()\n"
        "for number, override in enumerate(sys.argv[1].split('=')[1].split(',')):\n"
        "    os.makedirs(f'multirun/{number}')\n    os.chdir(f'multirun/{number}')\n"
        "    pathlib.Path('result').write_text(str(int(override) * FACTOR))\n    os.chdir(home)\n"
    )
    write("trainers/main.py", job)
    assert run_program(check_module("trainers.main"), ["lr=1,2"]).code == 0
    assert [Path(f"multirun/{number}/result").read_text(encoding="utf-8") for number in range(2)] == ["3", "6"]


def test_the_exit_code_and_a_traceback_without_our_frames_are_the_modules(capsys: pytest.CaptureFixture[str]) -> None:
    write("trainers/main.py", "import sys\nsys.exit(7)")
    assert run_program(check_module("trainers.main"), []).code == 7
    write("trainers/other.py", "def fail():\n    raise KeyError('lr')\nfail()")
    program = check_module("trainers.other")
    outcome = run_program(program, [])
    show_error(outcome.error, program.file)
    said = capsys.readouterr().err
    assert outcome.code == 1
    assert said.count("  File ") == 2
    assert said.startswith("Traceback")
    assert "runpy" not in said
    assert said.endswith("KeyError: 'lr'\n")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("trainers.none", "no such module"),
        ("nowhere.main", "no such module"),
        ("trainers", "no module __main__"),
        ("trainers/main.py", "without .py"),
        ("trainers.recipe.deeper", "no such module"),
    ],
)
def test_a_module_that_cannot_run_is_refused_by_name_before_anything_starts(module: str, reason: str) -> None:
    with pytest.raises(CommandError, match=reason) as caught:
        check_module(module)
    assert module in str(caught.value)
    assert caught.value.code == 2


def test_a_package_named_like_ours_in_the_current_folder_is_refused() -> None:
    Path("core").mkdir()
    write("core/__init__.py", "")
    write("trainers/main.py", "")
    with pytest.raises(CommandError, match=r"core.*has the name of Podium's package"):
        check_module("trainers.main")
