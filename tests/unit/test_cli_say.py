"""What the command line prints where the terminal is not what one expects."""

from __future__ import annotations

import io
import sys

import pytest

from app.cli.say import as_json, as_line, as_table, is_terminal


def test_a_name_that_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", errors="strict"))
    as_table(("name",), [("läufe",)])
    as_line("größe")
    as_json({"name": "läufe"})
    assert shown.getvalue() == b'NAME\nl\\xe4ufe\ngr\\xf6\\xdfe\n{\n  "name": "l\\u00e4ufe"\n}\n'


def test_a_stream_that_is_closed_is_not_a_terminal() -> None:
    closed = io.StringIO()
    closed.close()
    assert not is_terminal(None)
    assert not is_terminal(closed)
