"""One request over HTTP/1.1, to a port or a unix socket; no proxies, no redirects, no connection that is kept."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; ``request_id`` is empty and ``retry_after_s`` is 1 where the server did not say."""

    status: int
    body: bytes
    request_id: str = ""
    retry_after_s: float = 1.0


class NoAnswerError(Exception):
    """Nothing came back; ``sent`` says that the request may have arrived all the same."""

    def __init__(self, reason: str, sent: bool) -> None:
        """Keep the reason."""
        super().__init__(reason)
        self.sent = sent


def send(url: str, method: str, path: str, body: bytes | None, said: Mapping[str, str], timeout_s: float) -> Answer:
    """Send one request with the headers ``said`` below ``url`` and return the answer, whatever its status.

    Raises:
        NoAnswerError: Nobody is there, or the connection ended before the answer did.
    """
    connection, prefix = _connection(url, timeout_s)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NoAnswerError(error.strerror or str(error), sent=False) from error
        except ValueError as error:
            # Such as a name that DNS cannot have.
            raise NoAnswerError(f"{url!r} is not a valid address: {error}", sent=False) from error
        try:
            connection.request(method, prefix + path, body, dict(said))
            response = connection.getresponse()
            found, headers = response.read(_MAX_ANSWER_BYTES), response.headers
            return Answer(response.status, found, headers["x-request-id"] or "", _seconds(headers["retry-after"]))
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(str(error) or type(error).__name__, sent=True) from error
    finally:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket; its ``Host`` is localhost."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


def _connection(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection that is not open yet, and the path that stands before every other."""
    if url.startswith(_UNIX):
        return _UnixConnection(url.removeprefix(_UNIX), timeout_s), ""
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout_s), parts.path.rstrip("/")
    except (ValueError, http.client.HTTPException) as error:
        raise NoAnswerError(f"{url!r} is not a valid address: {error}", sent=False) from error


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() else 1.0
