"""Settings of the server and the client, checked once, at the edge."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from core.errors import UsageError


@dataclass(eq=False)
class SettingsError(UsageError):
    """A setting that is refused before anything is started; ``setting`` is its name on the command line."""

    setting: str = ""


# What RFC 3986 lets stand in a path, but for ";" and ",", which would end the path in a cookie.
_IN_A_PATH = "@:!$&'()*+=~"
_SEGMENT = re.compile(rf"(?:[\w.{re.escape(_IN_A_PATH)}-]|%(?![01][0-9A-Fa-f]|2[Ff]|5[Cc]|7[Ff])[0-9A-Fa-f]{{2}})+")
# A socket's address has 108 bytes on Linux and 104 elsewhere, with the zero at its end.
_MAX_UDS_BYTES = 103


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one server gives away, so that a visitor cannot slow the training down.

    ``requests_per_s`` is what a credential may ask for in the long run, ``n_burst`` what it may ask for at once: a page
    brings a handful of questions with it. ``n_connections`` is the number of connections that showed the same
    token, ``n_strangers`` of those that showed none. A stranger over the rate gets its answer ``stranger_delay_s``
    late. ``write_timeout_s`` is how long a reader may stand still before its connection is aborted.
    """

    max_body_bytes: int = 64 * 1024
    requests_per_s: float = 20.0
    n_burst: int = 40
    n_connections: int = 32
    n_strangers: int = 128
    n_streams: int = 16
    n_readers: int = 2
    n_commanders: int = 4
    n_readers_waiting: int = 32
    n_headers: int = 100
    head_timeout_s: float = 5.0
    body_timeout_s: float = 10.0
    refused_body_timeout_s: float = 2.0
    write_timeout_s: float = 10.0
    stranger_delay_s: float = 0.5
    tick_s: float = 0.5


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server listens and what it allows.

    ``allowed_hosts`` are further ``Host`` values, each with its port unless that is 80: for a tunnel or a proxy.
    ``open_to_network`` is what ``--allow-remote`` sets. With ``uds`` the server listens on that unix socket only.
    ``root_path`` is the path under which a proxy shows the server, such as "/podium". ``metrics_open`` lets
    ``/metrics`` be read without a token. ``home`` is the URL of a list of runs that this server is one of.

    Raises:
        SettingsError: The host is not loopback and ``open_to_network`` is not set, or the port, the socket or the root
            path cannot be.
    """

    host: str = "127.0.0.1"
    port: int = 0
    control: bool = False
    open_to_network: bool = False
    allowed_hosts: tuple[str, ...] = ()
    uds: str = ""
    root_path: str = ""
    metrics_open: bool = False
    home: str = ""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Refuse what would open the server to others by accident."""
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"port {self.port} is not between 0 and 65535 (0 picks a free one)", setting="--port")
        if not self.open_to_network and not is_loopback(self.host):
            raise SettingsError(
                f"--host {self.host} accepts connections from other hosts; use 127.0.0.1 or ::1 (with an SSH tunnel), "
                "or pass --allow-remote",
                setting="--host",
            )
        if self.uds:
            self._check_uds()
        object.__setattr__(self, "root_path", _as_written(self.root_path))

    def _check_uds(self) -> None:
        if self.port or self.host != "127.0.0.1":
            raise SettingsError("--uds cannot be combined with --host or --port", setting="--uds")
        n_bytes = len(os.fsencode(os.path.abspath(self.uds)))
        if n_bytes > _MAX_UDS_BYTES:
            raise SettingsError(
                f"--uds {self.uds} is {n_bytes} bytes long as an absolute path; the maximum is {_MAX_UDS_BYTES}. Use a "
                "shorter path, for example in /tmp",
                setting="--uds",
            )


def _as_written(root_path: str) -> str:
    """Return ``root_path`` as a browser writes it; a user's name in it may hold "@" or be encoded already.

    Raises:
        SettingsError: It is not a path.
    """
    first, *segments = root_path.split("/")
    dots = {".", ".."} & set(unquote(root_path).split("/"))
    if root_path and (first or dots or not segments or not all(map(_SEGMENT.fullmatch, segments))):
        raise SettingsError(
            f"--root-path {root_path!r} is not a path such as /podium or /user/jane@example.org/podium: it begins with "
            "a slash, does not end with one, and other characters than letters, digits and .-_~@:!$&'()*+= are "
            "percent-encoded",
            setting="--root-path",
        )
    return quote(unquote(root_path), safe=f"/{_IN_A_PATH}")


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address of this machine alone that the ``Host`` check knows; not all of 127/8."""
    return host in {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where the command line finds a running server; ``token`` is empty when none was given."""

    url: str
    token: str = field(repr=False)


def client_settings(url: str, token_file: Path | None, environ: Mapping[str, str] = os.environ) -> ClientSettings:
    """Return where to ask and with which token: from the options, else ``PODIUM_URL`` and ``PODIUM_TOKEN``.

    A token never comes from the command line itself, where every user of the machine could read it.

    Raises:
        SettingsError: No URL was given, the URL carries a token, or the token's file cannot be read.
    """
    chosen = url or environ.get("PODIUM_URL", "")
    if not chosen:
        raise SettingsError("no URL: pass --url http://127.0.0.1:PORT, or set PODIUM_URL", setting="--url")
    if not chosen.startswith(("http://", "https://", "unix:")):
        raise SettingsError(f"{chosen!r} is not a URL that starts with http://, https:// or unix:", setting="--url")
    if url and "token=" in url:
        raise SettingsError(
            "--url must not contain a token, as other users can read it there; use --token-file or PODIUM_TOKEN",
            setting="--url",
        )
    base, _, query = chosen.partition("?")
    token = environ.get("PODIUM_TOKEN", "") or query.partition("token=")[2].partition("&")[0]
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read the token file {token_file}: {error}", setting="--token-file") from error
    if not (token.isascii() and token.isprintable()):
        source = "PODIUM_TOKEN" if token_file is None else f"the token file {token_file}"
        raise SettingsError(f"{source} does not contain a token: expected one ASCII line", setting="--token-file")
    return ClientSettings(url=base.rstrip("/"), token=token)
