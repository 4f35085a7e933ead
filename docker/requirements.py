"""Write what the image is to have, without what only development needs; for the Dockerfile.

A change elsewhere in pyproject.toml, or of a pin of a development tool, leaves both files as they were and so the layer
of the dependencies too.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

SOURCE, TARGET = Path("/source"), Path("/wanted")


def name_of(requirement: str) -> str:
    """Return the distribution that a requirement or a pin names, in lower case."""
    return re.split(r"[\[=<>~!;\s]", requirement, maxsplit=1)[0].lower()


project = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
needed = project["dependencies"]
development = {name_of(each) for each in project["optional-dependencies"]["dev"]} - {name_of(each) for each in needed}
pins = (SOURCE / "constraints.txt").read_text(encoding="utf-8").splitlines()

TARGET.mkdir()
(TARGET / "requirements.txt").write_text("\n".join([*needed, ""]), encoding="utf-8")
kept = [pin for pin in pins if name_of(pin) not in development]
(TARGET / "constraints.txt").write_text("\n".join([*kept, ""]), encoding="utf-8")
