"""Files of the package: the dashboard's own and plotly.js, compressed once, never found by a path from outside."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import importlib.util
import mimetypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The system's own table may call a module text/plain, and a browser would not run it then.
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_MIN_GZIP_BYTES = 1024


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file ready to be sent. ``gzipped`` is empty where compressing does not pay."""

    body: bytes
    gzipped: bytes
    media_type: str
    etag: str


class StaticFiles:
    """What is under ``/static/``: a fixed list of names, so that no request can name another file."""

    def __init__(self, folder: Path, plotly_js: Path | None) -> None:
        """Take note of the files in ``folder`` and of plotly.js; each is read when first asked for."""
        self._lock = threading.Lock()
        self._ready: dict[str, StaticFile] = {}
        self._paths: dict[str, Path] = {
            path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()
        }
        self.version = _stamp(self._paths)
        self.plotly_name = ""
        if plotly_js is not None:
            self.plotly_name = f"plotly-{_plotly_version()}-{_stamp({plotly_js.name: plotly_js})}.min.js"
            self._paths[self.plotly_name] = plotly_js

    def is_immutable(self, name: str, version: str) -> bool:
        """Return whether the URL changes with the content, so that a browser need not ask again."""
        return name == self.plotly_name or version == self.version

    def is_there(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return name in self._paths

    def loaded(self, name: str) -> StaticFile | None:
        """Return a file that was asked for before, from memory."""
        return self._ready.get(name)

    def get(self, name: str) -> StaticFile | None:
        """Return a file, or None when there is none of that name; compressing plotly.js takes a moment once."""
        path = self._paths.get(name)
        if path is None:
            return None
        with self._lock:
            if name not in self._ready:
                self._ready[name] = _load(path)
            return self._ready[name]


def find_plotly_js() -> Path | None:
    """Return the plotly.js of the installed plotly wheel, without importing plotly's figure objects."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


def _plotly_version() -> str:
    return importlib.metadata.version("plotly")


def _stamp(paths: Mapping[str, Path]) -> str:
    """Return a short name of these files' names, sizes and times: enough to notice a change without reading them."""
    digest = hashlib.sha256()
    for name, path in paths.items():
        facts = path.stat()
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def _load(path: Path) -> StaticFile:
    body = path.read_bytes()
    small = gzip.compress(body, compresslevel=6, mtime=0) if len(body) >= _MIN_GZIP_BYTES else b""
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return StaticFile(
        body=body,
        gzipped=small if len(small) < len(body) else b"",
        media_type=media_type,
        etag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
    )
