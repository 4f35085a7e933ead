"""Who may ask what: the security rules as one pure function from a request's head to a verdict.

The order is: can it be read in one way only (nothing doubled), is it meant for us (Host), does it come from our own
pages (Sec-Fetch-Site, Origin), who asks (token or cookie), may they (scope, proof against forged requests, JSON).
Everything that is not listed as open needs a token, and every method that is not listed as safe needs control, so that
a new route is closed until somebody opens it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode

from app.api.problems import Problem
from app.api.tokens import Scope, Tokens

SAFE_METHODS = frozenset({"GET", "HEAD"})
# A probe names the server as it likes, often by the address of a pod; the answer is "ok" and nothing else.
HEALTH_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
STATIC_PREFIX = "/static/"
STREAM_PATH = "/api/v1/stream"
READ_ONLY_HINT = "Read-only. Start the run with --control (or app.serve(control=True)) to allow changes"


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body.

    Header names are in lower case; a header sent twice is joined by a comma, and its name is in ``doubled``.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    remote: str
    doubled: frozenset[str] = frozenset()

    def header(self, name: str) -> str:
        """Return a header's value, empty when it was not sent."""
        return self.headers.get(name, "")

    @property
    def is_mutation(self) -> bool:
        """Whether the method may change something."""
        return self.method not in SAFE_METHODS

    @property
    def is_static(self) -> bool:
        """Whether a file of the package is asked for, which is the same for everybody."""
        return self.path.startswith(STATIC_PREFIX) and not self.is_mutation

    @property
    def is_health(self) -> bool:
        """Whether a probe asks if the server is up."""
        return self.path in HEALTH_PATHS and not self.is_mutation

    @property
    def has_body(self) -> bool:
        """Whether a body comes after the head."""
        return self.header("content-length") not in {"", "0"} or "transfer-encoding" in self.headers


@dataclass(frozen=True, slots=True)
class Rules:
    """What the server was started with. ``hosts`` and ``origins`` are those that mean us, in lower case.

    ``open_paths`` are read without a token, beside those for probes; ``root_path`` is where a proxy shows us as a
    browser writes it, ``below`` the same as it stands in a decoded path.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    cookie: str
    control: bool
    tokens: Tokens
    open_paths: frozenset[str] = frozenset()
    root_path: str = ""

    @property
    def below(self) -> str:
        """Return the root path decoded."""
        return unquote(self.root_path)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who may go on. ``may_control`` holds for this one request only."""

    scope: Scope
    may_control: bool = False

    @property
    def name(self) -> str:
        """Return the name of the credential, for the audit log and for operations."""
        return self.scope.value


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request goes no further. ``by`` is the name of the credential it came with."""

    problem: Problem
    by: str = Scope.NOBODY.value


@dataclass(frozen=True, slots=True)
class Entry:
    """A browser that came with a token in the URL: give it ``session`` as a cookie and send it to ``location``.

    ``by`` is the name of the token.
    """

    session: str
    location: str
    by: str


Verdict: TypeAlias = Visitor | Refusal | Entry


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """Return the ``Host`` values that mean a server bound to ``host`` and ``port``."""
    shown = f"[{host}]" if ":" in host else host
    names = {shown, "127.0.0.1", "localhost", "[::1]"}
    ours = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
    return frozenset(name.lower() for name in ours)


def judge(head: Head, rules: Rules) -> Verdict:
    """Decide about a request."""
    if (problem := _unclear(head)) is not None:
        return Refusal(problem)
    if head.is_health:
        return Visitor(Scope.NOBODY)
    if (refusal := _check_source(head, rules)) is not None:
        return refusal
    if head.path == "/" and not head.is_mutation and "token=" in head.query:
        return _entry(head, rules)
    scope, by_cookie = _credential(head, rules)
    if head.is_static or (head.path in rules.open_paths and not head.is_mutation):
        return Visitor(scope)
    if scope is Scope.NOBODY:
        return Refusal(_NO_TOKEN)
    if (name := _doubled_name(head.query)) is not None:
        return Refusal(_invalid(f"query.{name[:40]} appears twice"), by=scope.value)
    if head.is_mutation:
        return _judge_mutation(head, rules, scope, by_cookie)
    return Visitor(scope)


_NO_TOKEN = Problem(
    401,
    "no-token",
    "Token required",
    "open the URL that Podium printed at startup, or send the token as 'Authorization: Bearer TOKEN'",
    headers=(("WWW-Authenticate", 'Bearer realm="podium"'),),
)


_ONCE = frozenset(
    {"authorization", "content-length", "content-type", "host", "origin", "transfer-encoding", "x-csrf"}
    | {"sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site"}
)
_ONCE_OF_A_COMMAND = frozenset({"if-match", "idempotency-key", "last-event-id"})
_CLOSE = (("Connection", "close"),)


def _unclear(head: Head) -> Problem | None:
    """Return what is wrong with a head that two programs could read in two ways."""
    if "content-length" in head.headers and "transfer-encoding" in head.headers:
        return _malformed("the request has both Content-Length and Transfer-Encoding")
    if not head.path.startswith("/"):
        return _malformed("the request's target is not a path")
    if found := sorted(head.doubled & _ONCE):
        return _malformed(f"the header {found[0]} appears twice")
    if found := sorted(head.doubled & _ONCE_OF_A_COMMAND):
        return _invalid(f"header.{found[0]} appears twice")
    return None


def _malformed(detail: str) -> Problem:
    return Problem(400, "bad-request", "Bad request", detail, headers=_CLOSE)


def _invalid(detail: str) -> Problem:
    return Problem(422, "invalid-request", "Invalid request", detail)


def _doubled_name(query: str) -> str | None:
    """Return the name of a query parameter that appears twice."""
    seen: set[str] = set()
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_source(head: Head, rules: Rules) -> Refusal | None:
    """Refuse what is meant for another server, or was sent by another site's page."""
    host = head.header("host").lower()
    if host not in rules.hosts:
        detail = "Host header not allowed; use the printed URL, or allow this host with --allowed-host"
        return Refusal(Problem(421, "wrong-host", "Misdirected request", detail))
    if head.is_static:
        return None
    site = head.header("sec-fetch-site")
    navigates = head.header("sec-fetch-mode") == "navigate" and head.header("sec-fetch-dest") == "document"
    if site not in {"", "same-origin", "none"} and not (navigates and head.method == "GET"):
        return Refusal(Problem(403, "cross-site", "Cross-site request", f"Sec-Fetch-Site is {site[:40]!r}"))
    origin = head.header("origin").lower()
    if "origin" in head.headers and not (origin in rules.origins and origin.endswith(f"//{host}")):
        detail = "the Origin header does not match this server"
        return Refusal(Problem(403, "wrong-origin", "Cross-site request", detail))
    return None


def _credential(head: Head, rules: Rules) -> tuple[Scope, bool]:
    """Return what the request's credential allows, and whether it is a cookie; a bearer token goes first."""
    if "authorization" in head.headers:
        kind, _, token = head.header("authorization").partition(" ")
        return (rules.tokens.scope_of_token(token.strip()) if kind.lower() == "bearer" else Scope.NOBODY), False
    return _scope_of_cookies(head.header("cookie"), rules), True


def _scope_of_cookies(header: str, rules: Rules) -> Scope:
    # Not http.cookies: every program on this machine's other ports shares our jar, and one odd cookie of theirs would
    # make it forget ours. They can also set one of our name for a longer path, which comes first.
    scopes = [
        rules.tokens.scope_of_session(value)
        for name, _, value in (part.strip().partition("=") for part in header.split(";"))
        if name == rules.cookie
    ]
    return max(scopes, key=list(Scope).index, default=Scope.NOBODY)


def _judge_mutation(head: Head, rules: Rules, scope: Scope, by_cookie: bool) -> Verdict:
    if not rules.control:
        return Refusal(Problem(403, "read-only", "Read-only", READ_ONLY_HINT), by=scope.value)
    if scope is not Scope.CONTROL:
        detail = "this token is read-only; use the control token"
        return Refusal(Problem(403, "scope", "Insufficient scope", detail), by=scope.value)
    if by_cookie and not rules.tokens.is_csrf(head.header("x-csrf")):
        detail = "a cookie is not sufficient for changes; send the X-CSRF header as well, or use a bearer token"
        return Refusal(Problem(403, "csrf", "CSRF check failed", detail), by=scope.value)
    if head.header("content-type").partition(";")[0].strip().lower() != "application/json":
        detail = "send 'Content-Type: application/json' with a JSON body ('{}' if it is empty)"
        return Refusal(Problem(415, "not-json", "Unsupported media type", detail), by=scope.value)
    return Visitor(scope, may_control=True)


def _entry(head: Head, rules: Rules) -> Verdict:
    """Trade the token in the URL for a cookie, and keep the rest of the query."""
    pairs = parse_qsl(head.query, keep_blank_values=True)
    given = [value for name, value in pairs if name == "token"]
    scope = rules.tokens.scope_of_token(given[0]) if len(given) == 1 else Scope.NOBODY
    if scope is Scope.NOBODY:
        return Refusal(_NO_TOKEN)
    rest = urlencode([(name, value) for name, value in pairs if name != "token"])
    return Entry(rules.tokens.session_of(scope), f"/?{rest}" if rest else "/", scope.value)
