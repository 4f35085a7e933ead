"""``podium serve``: a server for all runs of a folder, read-only and without Ray."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from app.api import Tokens
from app.home.index import RunsIndex
from app.home.site import Site
from app.settings import ServerSettings
from app.web_server import WebServer


class FolderServer:
    """The list of the runs in a folder, and the pages of each."""

    def __init__(self, folder: Path, settings: ServerSettings) -> None:
        """Remember what to show; nothing is opened before ``start``."""
        self._index = RunsIndex(folder)
        self._web = WebServer(settings)
        self._tokens = Tokens.make(control=False)
        self._site: Site | None = None

    @property
    def url(self) -> str:
        """The address with the token in it."""
        return self._web.url(self._tokens.read)

    def start(self) -> FolderServer:
        """Show the folder.

        Raises:
            RunsFolderError: The folder cannot be read.
            ServerStartError: The port cannot be had.
        """
        self._index.refresh(budget_s=0.0)
        try:
            self._site = Site(self._index, self._web.bind(), self._tokens)
            self._web.start(self._site)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop showing; may be called twice."""
        if self._site is not None:
            self._site.stop()
        self._web.stop()

    def __enter__(self) -> FolderServer:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()
