"""Writes ``docs/openapi.json``, which other programs rely on, and the table of commands in ``docs/rest.md``.

``make openapi`` runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from app.api.factory import create_app
from app.settings import ServerSettings
from app.store.reader import Reader
from web.commands import docs_table


def document() -> str:
    """Return the text of the document; it depends on the routes only, no run is opened."""
    app = create_app(Reader(Path("none.db")), None, ServerSettings())
    return json.dumps(app.openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def with_commands(text: str) -> str:
    """Return the text of ``docs/rest.md`` with the table of the present commands."""
    before, start, rest = text.partition("from web/commands.py -->\n")
    _, end, after = rest.partition("<!-- end of commands -->\n")
    return f"{before}{start}\n{docs_table()}\n{end}{after}"


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "openapi.json").write_text(document(), encoding="utf-8")
    (docs / "rest.md").write_text(with_commands((docs / "rest.md").read_text(encoding="utf-8")), encoding="utf-8")
