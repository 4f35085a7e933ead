"""The door: every request passes here before any route sees it, and every answer on its way out."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable

import anyio
import anyio.to_thread
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.audit import AuditLog
from app.api.limits import RateLimiter
from app.api.problems import PROBLEM_JSON, HtmlProblem, Problem, problem_body, problem_of, wants_page
from app.api.rules import STREAM_PATH, Entry, Head, Refusal, Rules, Verdict, Visitor, judge
from app.settings import Limits
from app.store.facts import AuditFacts

_log = logging.getLogger("podium.server")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=(), usb=(), payment=()"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
_MAX_EXPECTED_GENERATION = 2**53


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
        self._audited_refusals = RateLimiter(1.0, 1)
        self._audit_threads = anyio.CapacityLimiter(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _below(scope, self._rules.root_path)
        visit = _Visit(_head(scope), uuid.uuid4().hex, send)
        scope["podium.request_id"] = visit.request_id
        verdict = self._limited(visit.head, judge(visit.head, self._rules))
        match verdict:
            case Refusal():
                await self._audit_refusal(visit, verdict)
                await self._refuse(visit, verdict.problem)
            case Entry():
                await _enter(visit, verdict, self._rules)
            case Visitor():
                await self._let_in(scope, receive, visit, verdict)

    def _limited(self, head: Head, verdict: Verdict) -> Verdict:
        """Refuse the visitor who asks too often; files of the package are not counted."""
        if head.is_static and isinstance(verdict, Visitor):
            return verdict
        name = verdict.name if isinstance(verdict, Visitor) else "refused"
        if self._requests.take(name):
            return verdict
        by = verdict.by if isinstance(verdict, Refusal) else name
        detail = f"at most {self._limits.requests_per_s:g} requests a second"
        return Refusal(Problem(429, "too-many", "Too many requests", detail, headers=(("Retry-After", "1"),)), by=by)

    async def _let_in(self, scope: Scope, receive: Receive, visit: _Visit, visitor: Visitor) -> None:
        scope["podium.visitor"] = visitor
        if visit.head.is_mutation:
            body = await self._body(receive, visit.head)
            expected = _expected_generation(visit.head, body if isinstance(body, bytes) else b"")
            if isinstance(body, Problem):
                await self._note(visit, visitor.name, expected, "refused", f"{body.status} {body.slug}")
                await self._refuse(visit, body)
                return
            await self._note(visit, visitor.name, expected, "asked")
            await self._pass(scope, _replay(body, receive), visit)
            outcome = "accepted" if visit.status < 400 else "refused" if visit.status < 500 else "failed"
            operation_id = str(scope.get("podium.operation", ""))
            said = f"{visit.status} {scope.get('podium.note', '')}".strip()
            await self._note(visit, visitor.name, expected, outcome, said, operation_id)
        else:
            await self._pass(scope, receive, visit)

    async def _pass(self, scope: Scope, receive: Receive, visit: _Visit) -> None:
        if visit.head.method == "HEAD" and visit.head.path != STREAM_PATH:
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, visit.send)
        except Exception as error:
            _log.exception("a request for %s failed (%s)", visit.head.path, visit.request_id)
            if not visit.status:
                await self._refuse(visit, problem_of(error))

    async def _body(self, receive: Receive, head: Head) -> bytes | Problem:
        """Read the whole body of a mutation, or say why it is not taken."""
        declared = head.header("content-length")
        too_large = Problem(
            413, "too-large", "Too large", f"a body has at most {self._limits.max_body_bytes} bytes", headers=_CLOSE
        )
        if declared.isdigit() and int(declared[:18]) > self._limits.max_body_bytes:
            return too_large
        body = bytearray()
        with anyio.move_on_after(self._limits.body_timeout_s):
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
        return Problem(408, "too-slow", "Too slow", "the body did not come in time", headers=_CLOSE)

    async def _audit_refusal(self, visit: _Visit, refusal: Refusal) -> None:
        """Note a refused mutation; of a flood one a second, as each is a row on disk."""
        if not visit.head.is_mutation:
            return
        if refusal.problem.status == 429 and not self._audited_refusals.take("429"):
            return
        outcome = "unauthorised" if refusal.problem.status == 401 else "refused"
        detail = f"{refusal.problem.status} {refusal.problem.slug}"
        await self._note(visit, refusal.by, _expected_generation(visit.head, b""), outcome, detail)

    async def _note(
        self,
        visit: _Visit,
        by: str,
        expected: int | None,
        outcome: str,
        detail: str = "",
        operation_id: str = "",
    ) -> None:
        head = visit.head
        entry = AuditFacts(
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
        try:
            await anyio.to_thread.run_sync(self._audit.audit, entry, limiter=self._audit_threads)
        except Exception:
            _log.exception("the audit entry of %s was lost", visit.request_id)

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
        self._send = send

    async def send(self, message: Message) -> None:
        """Pass the answer on, sealed with the headers that every answer carries."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._sealed(list(message.get("headers", [])))}
        elif self.head.method == "HEAD" and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)

    async def answer(self, status: int, body: bytes, kind: str, headers: tuple[tuple[str, str], ...]) -> None:
        """Send a whole answer."""
        raw = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        raw += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})

    def _sealed(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        sealed = {name.encode(): value.encode() for name, value in _HEADERS}
        sealed[b"x-request-id"] = self.request_id.encode()
        if not (self.head.is_static and self.status in {200, 304}):
            sealed[b"cache-control"] = b"no-store"
        return [pair for pair in headers if pair[0].lower() not in sealed] + list(sealed.items())


_CLOSE = (("Connection", "close"),)
_GONE = Problem(400, "incomplete", "Incomplete", "the connection was gone before the whole body had come")


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
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joint = "; " if name == "cookie" else ", "
        headers[name] = f"{headers[name]}{joint}{value}" if name in headers else value
    client = scope.get("client")
    return Head(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        remote=str(client[0]) if client else "",
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand a body that was read already to the route, then whatever comes (a disconnect)."""
    rest = [body]

    async def again() -> Message:
        if rest:
            return {"type": "http.request", "body": rest.pop(), "more_body": False}
        return await receive()

    return again


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
