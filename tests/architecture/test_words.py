"""What a user reads uses the usual terms: words that this project once used in their place do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.main import get_command

from app.cli.program import program

ROOT = Path(__file__).resolve().parents[2]
# A pattern of what is not written, and what is written in its place. Case does not count.
NOT_USED = {
    r"(?:stood|stands?|standing) still": "downtime, blocked",
    r"(?<!there )\bis no\b(?! longer)": "is not a",
    r"\bcrews?\b": "worker set",
    r"\bdeal(?:s|t|ing)?\b": "shard, split",
    r"\b(?:told|tells?)\b": "report, show",
    r"\bsaid\b": "text, message",
    r"\bdesks?\b": "(the thing's own name)",
    r"\blookouts?\b": "node watcher",
    r"\bkeepers?\b": "(the thing's own name)",
    r"\bseats?\b": "slots",
    r"\bloans?\b": "(zero-copy) views",
    r"\bnewcomers?\b": "new workers",
    r"\bundertakings?\b": "operation",
    r"\blet(?:s|ting)? go\b": "close, release",
    r"\byoungest\b": "newest",
    r"\bon file\b": "recorded",
    r"\b(?:kin|whence|wish(?:es)?|anew)\b": "(plain words)",
    r"\b(?:no|some)body\b": "(the actor, or the passive)",
    r"\bsits?\b": "is placed on",
    r"\bstumbled\b": "failed",
    r"\bin one go\b": "at once",
    r"\bgo(?:es)? on\b": "continue",
    r"\bcame? to be\b": "change history",
    r"\bnot now\b": "cancel",
    r"\bstill out\b": "pending ranks",
    r"i-know": "--allow-remote",
    r"\bcannot be meant\b": "is invalid",
    r"\bdoes not fit\b": "is invalid",
    r"\bas (?:it|they) stands?\b": "currently",
    r"\bof its own\b": "own",
    r"serialis|authoris|colour(?!s?\b)": "American spelling",
}
# Where an old name must be written because it still works.
ALLOWED = {"app/cli/showing.py": {"i-know"}}
_PATTERNS = {re.compile(pattern, re.IGNORECASE): word for pattern, word in NOT_USED.items()}
_ONLY_FOR_USERS = {r"\bdoes not fit\b", r"\bof its own\b", r"\bgo(?:es)? on\b"}
# What is not written in docstrings and comments either.
_PROSE = {
    re.compile(pattern, re.IGNORECASE): word
    for pattern, word in {
        **{
            pattern: word
            for pattern, word in NOT_USED.items()
            if pattern.endswith(r"\b") and pattern not in _ONLY_FOR_USERS
        },
        r"\bdeal(?:s|t|ing)?\b(?! with)": "shard, split",
        r"\b(?:told|tells?)\b(?! apart)": "report, show",
        r"\b(?:landed|landing|lent|lend)\b": "(copied, borrowed)",
        r"\bledgers?\b": "(the thing's own name)",
        r"(?:stood|stands?|standing) still": "downtime, blocked",
        r"(?<!there )\bis no\b(?! longer)": "is not a",
    }.items()
}

TEMPLATES = sorted((ROOT / "web/templates").glob("*.html"))
SCRIPTS = sorted((ROOT / "web/static/js").glob("*.js"))
CORE = sorted((ROOT / "core").rglob("*.py"))
# Modules whose texts a user reads.
MODULES = sorted(
    [
        *(ROOT / "web").glob("*.py"),
        *(ROOT / "app/cli").glob("*.py"),
        *(ROOT / "app/api").rglob("*.py"),
        *CORE,
        ROOT / "app/server.py",
        ROOT / "app/web_server.py",
        ROOT / "app/settings.py",
    ]
)
DOCUMENTS = [ROOT / "docs/dashboard.md", ROOT / "docs/rest.md", ROOT / "README.md"]


def texts_of_template(path: Path) -> Iterator[str]:
    """Yield what a template shows: its text without markup, and the attributes that are read to people."""
    text = re.sub(r"\{#.*?#\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r'(?:title|aria-label|placeholder)="([^"]*)"', text)
    yield from re.findall(r'"([^"\n]* [^"\n]*)"', " ".join(re.findall(r"\{[{%].*?[}%]\}", text, flags=re.DOTALL)))
    yield re.sub(r"<[^>]*>", "\n", re.sub(r"\{[{%].*?[}%]\}", " ", text, flags=re.DOTALL))


def texts_of_script(path: Path) -> Iterator[str]:
    """Yield the texts in a script: its literals that have a space in them."""
    text = re.sub(r"(?m)^\s*(?://|/?\*).*$", "", path.read_text(encoding="utf-8"))
    text = re.sub(r"\$\{[^{}]*\}", "…", text)
    yield from (one for one in re.findall(r'"([^"\n]*)"', text) if " " in one)
    yield from (one for one in re.findall(r"`([^`\n]*)`", text) if " " in one)


def texts_of_module(path: Path) -> Iterator[str]:
    """Yield the texts in a module: its literals that have a space in them, but docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from [node.value] if " " in node.value.strip() else []


def prose_of_module(path: Path) -> Iterator[str]:
    """Yield what a developer reads in a module: its comments and its docstrings."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        # A docstring, also one below an attribute.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def texts_of_document(path: Path) -> Iterator[str]:
    """Yield a document without its code."""
    yield re.sub(r"```.*?```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def found_in(path: Path, texts: Iterator[str], patterns: Mapping[re.Pattern[str], str] = _PATTERNS) -> list[str]:
    """Return the words not used in ``texts``, each with what is written in its place."""
    allowed = ALLOWED.get(path.relative_to(ROOT).as_posix(), set())
    return [
        f"{hit.group()!r} (write: {word}) in: {text.strip()[max(hit.start() - 40, 0) : hit.end() + 40]!r}"
        for text in texts
        for pattern, word in patterns.items()
        if (hit := pattern.search(text.strip())) and hit.group() not in allowed
    ]


def texts_of_help(command: object) -> Iterator[str]:
    """Yield the help of a command, of its options and of the commands below it."""
    for one in (command, *getattr(command, "params", ())):
        yield str(getattr(one, "help", None) or "")
    for below in getattr(command, "commands", {}).values():
        yield from texts_of_help(below)


CASES = [
    *((path, texts_of_template) for path in TEMPLATES),
    *((path, texts_of_script) for path in SCRIPTS),
    *((path, texts_of_module) for path in MODULES),
    *((path, texts_of_document) for path in DOCUMENTS),
]


@pytest.mark.parametrize(
    ("path", "read"), CASES, ids=[path.relative_to(ROOT).as_posix() for path, _ in CASES]
)  # fmt: skip
def test_a_user_reads_the_usual_terms(path: Path, read: object) -> None:
    assert callable(read)
    assert found_in(path, read(path)) == []


@pytest.mark.parametrize("path", CORE, ids=[path.relative_to(ROOT).as_posix() for path in CORE])
def test_docstrings_and_comments_of_core_use_the_usual_terms(path: Path) -> None:
    assert found_in(path, prose_of_module(path), _PROSE) == []


def test_the_help_of_every_command_uses_the_usual_terms() -> None:
    texts = list(texts_of_help(get_command(program())))
    assert len(texts) > 50
    assert found_in(ROOT / "app/cli/showing.py", iter(texts)) == []


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("a.html", '<p title="Who told you">{{ x }}</p>', texts_of_template),
        ("a.html", "<p>the youngest {% if x %}one{% endif %}</p>", texts_of_template),
        ("a.js", 'say(node, "It goes on when closed.");', texts_of_script),
        ("a.js", "say(node, `${x} stood still`);", texts_of_script),
        ("a.py", 'HELP = f"{x} is no number"', texts_of_module),
        ("a.md", "Where everything sits.", texts_of_document),
        ("a.py", 'LIMIT = 3\n"""Nothing is dealt."""', prose_of_module),
        ("a.py", "LIMIT = 3  # the crew", prose_of_module),
    ],
)
def test_a_word_that_is_not_used_is_found_in_each_kind_of_file(
    tmp_path: Path, name: str, text: str, read: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert callable(read)
    assert len(found_in(path, read(path))) == 1
