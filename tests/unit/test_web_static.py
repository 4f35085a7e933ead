"""The static files keep what the content security policy and the rule of text-only names ask for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from web.pages import STATIC_DIR

SCRIPTS = sorted(STATIC_DIR.rglob("*.js"))
ALL_FILES = sorted(path for path in STATIC_DIR.rglob("*") if path.is_file())


def _id(path: Path) -> str:
    return path.relative_to(STATIC_DIR).as_posix()


@pytest.mark.parametrize("path", SCRIPTS, ids=_id)
def test_no_script_makes_html_or_code_out_of_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in text, forbidden


@pytest.mark.parametrize("path", ALL_FILES, ids=_id)
def test_no_static_file_names_another_origin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text)) - {"http://www.w3.org", "//www.w3.org"}
    assert found == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=_id)
def test_every_import_is_a_file_that_is_there_and_exports_it(path: Path) -> None:
    for names, target in re.findall(r'import \{([^}]+)\} from "(\./[^"]+)"', path.read_text(encoding="utf-8")):
        text = (path.parent / target).read_text(encoding="utf-8")
        for name in (one.strip() for one in names.split(",") if one.strip()):
            exported = rf"export (?:async )?(?:const|let|function|class) {re.escape(name)}(?![\w$])"
            assert re.search(exported, text), (target, name)


def test_no_copy_of_plotly_is_kept() -> None:
    assert not [path for path in ALL_FILES if "plotly" in path.name or path.stat().st_size > 100_000]
