"""Writes ``docs/openapi.json``: what programs outside this repository may count on. ``make openapi`` runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from app.api.factory import create_app
from app.settings import ServerSettings
from app.store.reader import Reader


def document() -> str:
    """Return the text of the document; it depends on the routes only, no run is opened."""
    app = create_app(Reader(Path("none.db")), None, ServerSettings())
    return json.dumps(app.openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
