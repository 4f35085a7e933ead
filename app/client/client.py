"""The client class: a running driver controlled from another program over REST, with the standard library only.

::

    client = Client("http://127.0.0.1:8080", token)
    operation = client.resize("gpus", [2])
    client.wait(operation, timeout_s=120)

Proxies are never used and redirects never followed: either would send the token to another host. The
errors::

    core.errors.PodiumError
    └── ClientError
        ├── UnreachableError              nothing answers there, or another program
        ├── RefusedError                  the server answered with a problem; its fields are here
        │   ├── NotAuthorisedError        no token, a wrong one, or one that may only read
        │   ├── StaleGenerationError      the pool was changed in the meantime
        │   ├── ConflictError             the present state forbids it
        │   ├── NotFoundError             no such pool, group or operation
        │   ├── InvalidRequestError       it can never work, or the request does not fit
        │   └── BusyError                 too many requests, or the driver is ending
        ├── OperationFailedError          the operation ended without success
        └── StillRunningError (TimeoutError)  the operation was not done in time
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from app.client.models import (
    PROBLEM,
    BusyError,
    ConflictError,
    Operation,
    OperationFailedError,
    StillRunningError,
    UnreachableError,
    operation_of,
    pool_of,
    refusal_of,
)
from app.client.transport import Answer, NoAnswerError, send
from core.control.commands import Command, Merge, Move, Part, Pause, Resize, Resume, Split
from core.errors import UsageError
from web.commands import BY_KIND, Kind
from web.rows import Pool

_N_TRIES = 3
_MAX_PAUSE_S = 5.0
_POLL_S = (0.05, 0.1, 0.2, 0.5)
_Part: TypeAlias = tuple[str, int, Sequence[str]]


class Client:
    """One server and the token for it. A client may be used from several threads at once.

    ``url`` is such as "http://127.0.0.1:8080" or "unix:/run/podium.sock". Every change carries an idempotency key made
    here: when an answer is lost on the way the same request is sent again and is still one operation.
    """

    def __init__(self, url: str, token: str = "", timeout_s: float = 30.0) -> None:
        """Remember where to ask; nothing is sent. A plan may take as long as the cluster needs to say what is free.

        Raises:
            UsageError: ``token`` cannot be sent in a header.
        """
        # Here and without its text: http.client would show it in a traceback.
        if not (token.isascii() and token.isprintable()):
            raise UsageError("invalid token: expected one line of printable ASCII, as in <run>.db.token")
        self._url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools as they stand.

        Raises:
            ClientError: The server refused or was not there; so with every method.
        """
        return tuple(pool_of(one) for one in self.get("/api/v1/resource-pools")["items"])

    def pool(self, name: str) -> Pool:
        """Return one pool."""
        return pool_of(self.get(f"/api/v1/resource-pools/{_quoted(name)}"))

    def submit(self, command: Command) -> Operation:
        """Submit a command of ``core.control``; its ``who`` is not sent, the server takes it from the token.

        A command that changes slots names what it expects: the generation in it, else the pool's present one.
        """
        command = self.expecting(command)
        expected: dict[str, Any] = {
            "expected_generation": command.expected_generation,
            "deadline_s": command.deadline_s,
        }
        if isinstance(command, Merge):
            expected["expected_generations"] = dict(command.expected_generations)
        given = {name: value for name, value in expected.items() if value is not None}
        return operation_of(self.post(_path(command), _parameters(command) | given))

    def plan(self, command: Command) -> Mapping[str, Any]:
        """Return what a command would do; nothing is changed."""
        found: Mapping[str, Any] = self.post(f"{_path(command)}?dry_run=true", _parameters(command))
        return found

    def expecting(self, command: Command) -> Command:
        """Return ``command`` with the present generations of its pools, where it needs one and has none."""
        if isinstance(command, Merge):
            named = dict(command.expected_generations)
            seen = [(pool, named[pool] if pool in named else self.pool(pool).generation) for pool in command.pools]
            return replace(command, expected_generations=tuple(seen))
        if command.changes_slots and command.expected_generation is None:
            return replace(command, expected_generation=self.pool(command.pool).generation)
        return command

    def pause(self, pool: str, generation: int | None = None, deadline_s: float | None = None) -> Operation:
        """Let no new call on the pool's groups start; without ``generation``, whatever the present one is."""
        return self.submit(Pause(pool, "", **_options(generation, deadline_s)))

    def resume(self, pool: str, generation: int | None = None, deadline_s: float | None = None) -> Operation:
        """Let the pool's groups continue; without ``generation``, whatever the present one is."""
        return self.submit(Resume(pool, "", **_options(generation, deadline_s)))

    def resize(
        self,
        pool: str,
        process_on_nodes: Sequence[int],
        generation: int | None = None,
        deadline_s: float | None = None,
    ) -> Operation:
        """Give the pool other processes per node."""
        return self.submit(Resize(pool, "", tuple(process_on_nodes), **_options(generation, deadline_s)))

    def split(
        self, pool: str, parts: Sequence[_Part], generation: int | None = None, deadline_s: float | None = None
    ) -> Operation:
        """Split the pool's slots into ``parts``, each a name, a size and the groups that go there."""
        return self.submit(Split(pool, "", _parts(parts), **_options(generation, deadline_s)))

    def merge(
        self,
        pools: Sequence[str],
        name: str,
        generations: Mapping[str, int] | None = None,
        deadline_s: float | None = None,
    ) -> Operation:
        """Make one pool of several; ``generations`` are the expected ones by pool."""
        expected = tuple((generations or {}).items())
        return self.submit(Merge(tuple(pools), name, "", expected_generations=expected, **_options(None, deadline_s)))

    def move(self, group: str, pool: str, generation: int | None = None, deadline_s: float | None = None) -> Operation:
        """Rebuild a group on the slots of another pool; ``generation`` is of that pool."""
        return self.submit(Move(group, pool, "", **_options(generation, deadline_s)))

    def plan_resize(self, pool: str, process_on_nodes: Sequence[int]) -> Mapping[str, Any]:
        """Return what a resize would do; nothing is changed. So with the others."""
        return self.plan(Resize(pool, "", tuple(process_on_nodes)))

    def plan_split(self, pool: str, parts: Sequence[_Part]) -> Mapping[str, Any]:
        """Return what a split would do."""
        return self.plan(Split(pool, "", _parts(parts)))

    def plan_merge(self, pools: Sequence[str], name: str) -> Mapping[str, Any]:
        """Return what a merge would do."""
        return self.plan(Merge(tuple(pools), name, ""))

    def plan_move(self, group: str, pool: str) -> Mapping[str, Any]:
        """Return what a move would do."""
        return self.plan(Move(group, pool, ""))

    def operation(self, operation_id: str) -> Operation:
        """Return an operation as it stands."""
        return operation_of(self.get(f"/api/v1/operations/{_quoted(operation_id)}"))

    def operations(self, limit: int = 100) -> tuple[Operation, ...]:
        """Return operations, newest first."""
        found: list[Operation] = []
        cursor: str | None = None
        while len(found) < limit:
            asked = {"limit": str(min(limit - len(found), 1000))} | ({"cursor": cursor} if cursor else {})
            page = self.get(f"/api/v1/operations?{urlencode(asked)}")
            found += [operation_of(one) for one in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return tuple(found)

    def cancel(self, operation: Operation | str) -> Operation:
        """Take back an operation that is not running yet."""
        return operation_of(self.post(f"/api/v1/operations/{_quoted(_id(operation))}/cancel", {}))

    def wait(self, operation: Operation | str, timeout_s: float = 120.0) -> Operation:
        """Return the operation once it succeeded.

        Raises:
            OperationFailedError: It failed, expired or was cancelled.
            StillRunningError: It is not done after ``timeout_s``.
        """
        for seen in self.watch(operation, timeout_s):
            latest = seen
        if latest.succeeded:
            return latest
        said = f"operation {latest.id} ({latest.kind} {latest.pool}) {latest.state}: {latest.error}"
        raise OperationFailedError(said, operation=latest)

    def watch(self, operation: Operation | str, timeout_s: float | None = None) -> Iterator[Operation]:
        """Yield the operation as it stands and whenever it moved on, until it is done.

        Raises:
            StillRunningError: It is not done after ``timeout_s``.
        """
        began_s, n_looks = time.monotonic(), 0
        seen: Operation | None = None
        while True:
            latest = self.operation(_id(operation))
            if latest != seen:
                yield latest
                seen = latest
            if latest.done:
                return
            if timeout_s is not None and time.monotonic() - began_s > timeout_s:
                said = f"operation {latest.id} is still {latest.state} after {timeout_s:g} s; it continues"
                raise StillRunningError(said, operation=latest, timeout_s=timeout_s)
            time.sleep(_POLL_S[min(n_looks, len(_POLL_S) - 1)])
            n_looks += 1

    def get(self, path: str) -> Any:
        """Return the JSON at ``path``."""
        return self._ask("GET", path, None, {})

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """Ask for a change and return the answer's JSON."""
        raw = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
        return self._ask("POST", path, raw, headers)

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
        """Send a request, and again where that is safe: nothing was done, or it has a key."""
        bearer = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        for n_left in reversed(range(_N_TRIES)):
            try:
                answer = send(self._url, method, path, body, {**headers, **bearer}, self._timeout_s)
            except NoAnswerError as error:
                if n_left and error.sent:
                    continue
                raise UnreachableError(f"cannot reach {self._url}: {error}", url=self._url) from error
            try:
                return self._read(answer)
            except BusyError as error:
                if not n_left or error.kind not in {"too-many", "busy"}:
                    raise
                time.sleep(min(error.retry_after_s, _MAX_PAUSE_S))
            except ConflictError as error:
                if not n_left or error.kind != "key-in-flight":
                    raise
                time.sleep(_POLL_S[-1])
        raise AssertionError("the last try returns or raises")

    def _read(self, answer: Answer) -> Any:
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        # Every answer of ours has an id; a stranger's JSON would be taken for a pool.
        if answer.status < 300 and found is not None and answer.request_id:
            return found
        if not isinstance(found, dict) or not str(found.get("type", "")).startswith(PROBLEM):
            raise UnreachableError(f"{self._url} is not a Podium server", url=self._url)
        raise refusal_of(answer.status, found, answer.retry_after_s)


def _id(operation: Operation | str) -> str:
    return operation if isinstance(operation, str) else operation.id


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _path(command: Command) -> str:
    definition = BY_KIND[command.kind]
    return "/api/v1" + definition.path.format(**{one: _quoted(getattr(command, one)) for one in definition.in_path})


def _parameters(command: Command) -> dict[str, Any]:
    """Return the part of the request body that says what to do."""
    fields = asdict(command)
    return {one.name: fields[one.name] for one in BY_KIND[command.kind].in_body if one.kind is not Kind.GENERATIONS}


def _options(generation: int | None, deadline_s: float | None) -> dict[str, Any]:
    return {"expected_generation": generation} | ({} if deadline_s is None else {"deadline_s": deadline_s})


def _parts(parts: Sequence[_Part]) -> tuple[Part, ...]:
    return tuple(Part(name, size, tuple(groups)) for name, size, groups in parts)
