"""Asks a running driver's server over REST, with the standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from app.cli.say import CommandError, Exit
from app.settings import ClientSettings

_TIMEOUT_S = 10.0


class Client:
    """One server and the token for it. Proxies are never asked: the server is on this machine or behind a tunnel."""

    def __init__(self, settings: ClientSettings) -> None:
        """Remember where to ask."""
        self._settings = settings
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def get(self, path: str) -> Any:
        """Return the JSON at ``path``.

        Raises:
            CommandError: The server refused, failed, or was not there; with the exit code for it.
        """
        return self._ask(urllib.request.Request(self._settings.url + path))

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """Ask for a change and return the operation.

        Raises:
            CommandError: The server refused, failed, or was not there; with the exit code for it.
        """
        raw = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(self._settings.url + path, data=raw, headers=headers, method="POST"))

    def _ask(self, request: urllib.request.Request) -> Any:
        if self._settings.token:
            request.add_unredirected_header("Authorization", f"Bearer {self._settings.token}")
        url = self._settings.url
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(64 * 1024)) from error
        except json.JSONDecodeError as error:
            raise CommandError(f"{url} is not a Podium server", code=Exit.UNREACHABLE) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise CommandError(f"cannot reach {url}: {reason}", code=Exit.UNREACHABLE) from error


def pool_path(name: str, action: str) -> str:
    """Return the path of an action on a pool."""
    return f"/api/v1/resource-pools/{quote(name, safe='')}/{action}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to a place that nobody named."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


def _refusal(status: int, body: bytes) -> CommandError:
    try:
        problem = json.loads(body)
        kind, text = str(problem["type"]), f"{problem['title']}: {problem['detail']}"
    except (ValueError, KeyError, TypeError):
        kind, text = "", f"the server answered {status}"
    if status == 401 or kind.endswith(":scope"):
        return CommandError(f"{text} (--token-file or PODIUM_TOKEN)", code=Exit.AUTH)
    return CommandError(text, code=Exit.REFUSED if status in {403, 409, 412} else Exit.FAILED)
