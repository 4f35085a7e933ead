"""The door: every request passes here before any route sees it, and every answer on its way out."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable

import anyio
import anyio.to_thread
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.audit import AuditLog, RefusalAudit
from app.api.connections import STATE_KEY, Connection, NoConnection
from app.api.headers import NO_STORE, SECURITY_HEADERS
from app.api.limits import RateLimiter
from app.api.problems import PROBLEM_JSON, HtmlProblem, Problem, problem_body, problem_of, wants_page
from app.api.rules import STREAM_PATH, Entry, Head, Refusal, Rules, Verdict, Visitor, judge
from app.api.tokens import Scope as Credential
from app.settings import Limits
from app.store.facts import AuditFacts

_log = logging.getLogger("podium.server")

_MAX_EXPECTED_GENERATION = 2**53
# An answer is sent in pieces, so that of a large one no more than this waits in memory for a slow reader.
_PIECE_BYTES = 64 * 1024
_NO_CONNECTION = NoConnection()


class Guard:
    """ASGI middleware that judges, limits, audits and seals.

    ``html_problem`` makes a page of a problem and a request id, for a browser that asked for one.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: Rules,
        limits: Limits,
        audit: AuditLog,
        html_problem: HtmlProblem,
        now_ns: Callable[[], int],
    ) -> None:
        """Stand before ``app``; ``now_ns`` is the driver clock."""
        self._app = app
        self._rules = rules
        self._limits = limits
        self._audit = audit
        self._html_problem = html_problem
        self._now_ns = now_ns
        self._requests = RateLimiter(limits.requests_per_s, limits.n_burst)
        self._refusals = RefusalAudit(self._keep)
        self._audit_threads = anyio.CapacityLimiter(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: Connection = scope.get("state", {}).get(STATE_KEY, _NO_CONNECTION)
        connection.begin()
        try:
            await self._answer(_below(scope, self._rules.below), receive, send, connection)
        finally:
            connection.end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, connection: Connection) -> None:
        visit = _Visit(_head(scope), uuid.uuid4().hex, send)
        scope["podium.request_id"] = visit.request_id
        verdict = self._admit(visit.head, len(scope["headers"]), connection)
        match verdict:
            case Refusal():
                await self._turn_away(visit, verdict, receive)
            case Entry():
                await _enter(visit, verdict, self._rules)
            case Visitor():
                await self._let_in(scope, receive, visit, verdict, connection)

    def _admit(self, head: Head, n_headers: int, connection: Connection) -> Verdict:
        """Judge a request, then refuse what is beyond the limits; a right credential is counted on its own."""
        if n_headers > self._limits.n_headers:
            detail = f"a request has at most {self._limits.n_headers} header fields"
            return Refusal(Problem(431, "too-large", "Too many header fields", detail, headers=_CLOSE))
        verdict = judge(head, self._rules)
        by = verdict.name if isinstance(verdict, Visitor) else verdict.by
        is_stranger = by == Credential.NOBODY.value
        if not is_stranger and not connection.identify(by):
            detail = f"{self._limits.n_connections} connections with the {by} token are open; close one"
            later = (*_CLOSE, ("Retry-After", "1"))
            return Refusal(Problem(503, "too-many-connections", "Too many connections", detail, headers=later), by=by)
        if head.is_health or (head.is_static and not is_stranger):
            return verdict
        is_open = is_stranger and isinstance(verdict, Visitor) and not head.is_static
        if self._requests.take(head.path if is_open else by):
            return verdict
        detail = f"rate limit: {self._limits.requests_per_s:g} requests per second"
        return Refusal(Problem(429, "too-many", "Too many requests", detail, headers=(("Retry-After", "1"),)), by=by)

    async def _turn_away(self, visit: _Visit, refusal: Refusal, receive: Receive) -> None:
        """Refuse, after what belongs to the request was read: whoever still sends would not see the answer."""
        head = visit.head
        if refusal.problem.status == 429 and refusal.by == Credential.NOBODY.value:
            # Who has no token cannot keep the driver's process busy with refusals.
            await anyio.sleep(self._limits.stranger_delay_s)
        if head.is_mutation and head.has_body and ("Connection", "close") not in refusal.problem.headers:
            body = await self._body(receive, head, self._limits.refused_body_timeout_s)
            visit.must_close = isinstance(body, Problem)
        if head.is_mutation:
            outcome = "unauthorised" if refusal.problem.status == 401 else "refused"
            detail = f"{refusal.problem.status} {refusal.problem.slug}"
            expected = _expected_generation(head, b"")
            await self._refusals.note(self._entry(visit, refusal.by, expected, outcome, detail))
        await self._refuse(visit, refusal.problem)

    async def _let_in(
        self, scope: Scope, receive: Receive, visit: _Visit, visitor: Visitor, connection: Connection
    ) -> None:
        scope["podium.visitor"] = visitor
        if visit.head.is_mutation:
            body = await self._body(receive, visit.head, self._limits.body_timeout_s)
            if isinstance(body, bytes) and (name := _doubled_key(body)) is not None:
                body = Problem(422, "invalid-request", "Invalid request", f"body: the key {name[:40]!r} appears twice")
            expected = _expected_generation(visit.head, body if isinstance(body, bytes) else b"")
            if isinstance(body, Problem):
                await self._note(visit, visitor.name, expected, "refused", f"{body.status} {body.slug}")
                await self._refuse(visit, body)
                return
            await self._note(visit, visitor.name, expected, "asked")
            await self._pass(scope, _replay(body, receive), visit, connection)
            outcome = "accepted" if visit.status < 400 else "refused" if visit.status < 500 else "failed"
            operation_id = str(scope.get("podium.operation", ""))
            said = f"{visit.status} {scope.get('podium.note', '')}".strip()
            await self._note(visit, visitor.name, expected, outcome, said, operation_id)
        else:
            await self._pass(scope, receive, visit, connection)

    async def _pass(self, scope: Scope, receive: Receive, visit: _Visit, connection: Connection) -> None:
        if visit.head.method == "HEAD" and visit.head.path != STREAM_PATH:
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, visit.send)
        except Exception as error:
            # Starlette wraps what comes after the answer began.
            problem = problem_of(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            if not visit.status:
                _log.exception("a request for %s failed (%s)", visit.head.path, visit.request_id)
                await self._refuse(visit, problem)
                return
            if problem.status == 500:
                _log.exception("the response to %s was interrupted (%s)", visit.head.path, visit.request_id)
            else:
                _log.warning(
                    "the response to %s was interrupted: %s (%s)", visit.head.path, problem.detail, visit.request_id
                )
            # A part of a file must not look like the whole: the reader sees a broken connection.
            connection.abort()
            await anyio.sleep(0)

    async def _body(self, receive: Receive, head: Head, timeout_s: float) -> bytes | Problem:
        """Read the whole body of a mutation, or say why it is not taken."""
        declared = head.header("content-length")
        too_large = Problem(
            413, "too-large", "Too large", f"request body exceeds {self._limits.max_body_bytes} bytes", headers=_CLOSE
        )
        if declared.isdigit() and int(declared[:18]) > self._limits.max_body_bytes:
            return too_large
        body = bytearray()
        with anyio.move_on_after(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    # What came so far may be a whole command by accident, but it is not what they meant to send.
                    return _GONE
                body += message.get("body", b"")
                if len(body) > self._limits.max_body_bytes:
                    return too_large
                if not message.get("more_body", False):
                    return bytes(body)
        return Problem(408, "too-slow", "Request timeout", "the request body did not arrive in time", headers=_CLOSE)

    async def _note(
        self,
        visit: _Visit,
        by: str,
        expected: int | None,
        outcome: str,
        detail: str = "",
        operation_id: str = "",
    ) -> None:
        await self._keep(self._entry(visit, by, expected, outcome, detail, operation_id))

    def _entry(
        self, visit: _Visit, by: str, expected: int | None, outcome: str, detail: str, operation_id: str = ""
    ) -> AuditFacts:
        head = visit.head
        return AuditFacts(
            at_ns=self._now_ns(),
            actor=by,
            remote=head.remote,
            user_agent=head.header("user-agent")[:200],
            request_id=visit.request_id,
            action=head.method[:10],
            target=head.path[:200],
            expected_generation=expected,
            outcome=outcome,
            detail=detail,
            operation_id=operation_id,
        )

    async def _keep(self, entry: AuditFacts) -> None:
        try:
            await anyio.to_thread.run_sync(self._audit.audit, entry, limiter=self._audit_threads)
        except Exception:
            _log.exception("failed to record the audit entry of %s", entry.request_id)

    async def _refuse(self, visit: _Visit, problem: Problem) -> None:
        head = visit.head
        if wants_page(head.header("accept"), head.path):
            text = self._html_problem(problem, visit.request_id)
            body, kind = text.encode("utf-8", "replace"), "text/html; charset=utf-8"
        else:
            body, kind = problem_body(problem, head.path, visit.request_id), PROBLEM_JSON
        await visit.answer(problem.status, body, kind, problem.headers)


class _Visit:
    """One request on its way; ``status`` is 0 until the answer began."""

    def __init__(self, head: Head, request_id: str, send: Send) -> None:
        self.head = head
        self.request_id = request_id
        self.status = 0
        # A body that nobody reads would otherwise be taken for the next request, or keep us reading.
        self.must_close = head.has_body and not head.is_mutation
        self._send = send

    async def send(self, message: Message) -> None:
        """Pass the answer on, sealed with the headers that every answer carries."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._sealed(list(message.get("headers", [])))}
        elif self.head.method == "HEAD" and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        body, more_body = message.get("body", b""), message.get("more_body", False)
        if len(body) <= _PIECE_BYTES:
            await self._send(message)
            return
        view = memoryview(body)
        for begin in range(0, len(body), _PIECE_BYTES):
            end = begin + _PIECE_BYTES
            await self._send({**message, "body": view[begin:end], "more_body": more_body or end < len(body)})
            # A connection that was aborted is known to be one turn of the loop later, and others want to be answered.
            await anyio.sleep(0)

    async def answer(self, status: int, body: bytes, kind: str, headers: tuple[tuple[str, str], ...]) -> None:
        """Send a whole answer."""
        raw = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        raw += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})

    def _sealed(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        sealed = dict(SECURITY_HEADERS)
        sealed[b"x-request-id"] = self.request_id.encode()
        if not (self.head.is_static and self.status in {200, 304}):
            sealed |= (NO_STORE,)
        if self.must_close:
            sealed[b"connection"] = b"close"
        return [pair for pair in headers if pair[0].lower() not in sealed] + list(sealed.items())


_CLOSE = (("Connection", "close"),)
_GONE = Problem(400, "incomplete", "Incomplete request", "the connection was closed before the whole body arrived")


async def _enter(visit: _Visit, entry: Entry, rules: Rules) -> None:
    root = rules.root_path
    value = f"{rules.cookie}={entry.session}; Path={root}/; HttpOnly; SameSite=Strict"
    await visit.answer(303, b"", "text/plain", (("Location", root + entry.location), ("Set-Cookie", value)))


def _below(scope: Scope, root_path: str) -> Scope:
    """Return ``scope`` with its path as the routes know it, whether the proxy in front takes the root path off or not.

    A copy only where something changes.
    """
    path = scope["path"]
    if not root_path or not (path == root_path or path.startswith(f"{root_path}/")):
        return scope
    return {**scope, "path": path[len(root_path) :] or "/"}


def _head(scope: Scope) -> Head:
    headers: dict[str, str] = {}
    doubled: set[str] = set()
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joint = "; " if name == "cookie" else ", "
        if name in headers:
            doubled.add(name)
        headers[name] = f"{headers[name]}{joint}{value}" if name in headers else value
    client = scope.get("client")
    return Head(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        remote=str(client[0]) if client else "",
        doubled=frozenset(doubled),
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand a body that was read already to the route, then whatever comes (a disconnect)."""
    rest = [body]

    async def again() -> Message:
        if rest:
            return {"type": "http.request", "body": rest.pop(), "more_body": False}
        return await receive()

    return again


def _doubled_key(body: bytes) -> str | None:
    """Return a key that an object of the JSON ``body`` has twice; what is not JSON is for the route to refuse."""
    found: list[str] = []

    def check(pairs: list[tuple[str, object]]) -> None:
        found.extend(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=check)
    return found[0] if found else None


def _expected_generation(head: Head, body: bytes) -> int | None:
    """Return the generation that the request expects, for the audit entry; the route checks it properly."""
    found = re.fullmatch(r'"g(\d{1,15})"', head.header("if-match").strip())
    if found:
        return int(found[1])
    try:
        asked = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return None
    expected = asked.get("expected_generation") if isinstance(asked, dict) else None
    return expected if isinstance(expected, int) and 0 <= expected < _MAX_EXPECTED_GENERATION else None
