"""The client class: a running driver controlled from another program over REST, with the standard library only.

::

    client = Client("http://127.0.0.1:8080", token)
    operation = client.resize("gpus", [2])
    client.wait(operation, timeout_s=120)

Proxies are never asked and redirects never followed, as either would carry the token to a place that nobody named. The
errors::

    core.errors.PodiumError
    └── ClientError
        ├── UnreachableError              nobody answers there, or somebody who is not Podium
        ├── RefusedError                  the server answered with a problem; its fields are here
        │   ├── NotAuthorisedError        no token, a wrong one, or one that may only read
        │   ├── StaleGenerationError      somebody else changed it first
        │   ├── ConflictError             the present state forbids it
        │   ├── NotFoundError             no such pool, group or operation
        │   ├── InvalidRequestError       it can never work, or the request does not fit
        │   └── BusyError                 too many requests, or the driver is ending
        ├── OperationFailedError          the operation is done and came to nothing
        └── StillRunningError (TimeoutError)  the operation was not done in time
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
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
from core.errors import UsageError
from web.rows import Pool

_N_TRIES = 3
_MAX_PAUSE_S = 5.0
_POLL_S = (0.05, 0.1, 0.2, 0.5)


class Client:
    """One server and the token for it. A client may be used from several threads at once.

    ``url`` is such as "http://127.0.0.1:8080" or "unix:/run/podium.sock". Every change carries an idempotency key made
    here: when an answer is lost on the way the same request is sent again and is still one operation.
    """

    def __init__(self, url: str, token: str = "", timeout_s: float = 30.0) -> None:
        """Remember where to ask; nothing is sent. A plan may take as long as the cluster needs to say what is free.

        Raises:
            UsageError: ``token`` is none that a header could carry.
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

    def pause(self, pool: str, generation: int | None = None, deadline_s: float | None = None) -> Operation:
        """Let no new call on the pool's groups start; without ``generation`` whatever it is now."""
        return self._change(_pool_path(pool, "pause"), {}, generation, deadline_s)

    def resume(self, pool: str, generation: int | None = None, deadline_s: float | None = None) -> Operation:
        """Let the pool's groups go on; without ``generation`` whatever it is now."""
        return self._change(_pool_path(pool, "resume"), {}, generation, deadline_s)

    def resize(
        self,
        pool: str,
        process_on_nodes: Sequence[int],
        generation: int | None = None,
        deadline_s: float | None = None,
    ) -> Operation:
        """Give the pool other processes per node.

        ``generation`` is what you saw when you decided; without it the pool is looked at just before.
        """
        seen = self.pool(pool).generation if generation is None else generation
        return self._change(_pool_path(pool, "resize"), _resize(process_on_nodes), seen, deadline_s)

    def split(
        self,
        pool: str,
        parts: Sequence[tuple[str, int, Sequence[str]]],
        generation: int | None = None,
        deadline_s: float | None = None,
    ) -> Operation:
        """Deal the pool's slots to ``parts``, each a name, a size and the groups that go there."""
        seen = self.pool(pool).generation if generation is None else generation
        return self._change(_pool_path(pool, "split"), _split(parts), seen, deadline_s)

    def merge(
        self,
        pools: Sequence[str],
        name: str,
        generations: Mapping[str, int] | None = None,
        deadline_s: float | None = None,
    ) -> Operation:
        """Make one pool of several; ``generations`` is what you saw of each, those not named are looked at before."""
        seen = {pool: (generations or {}).get(pool) for pool in pools}
        known = {pool: self.pool(pool).generation if seen[pool] is None else seen[pool] for pool in pools}
        return self._change(_MERGE, {**_merge(pools, name), "expected_generations": known}, None, deadline_s)

    def move(self, group: str, pool: str, generation: int | None = None, deadline_s: float | None = None) -> Operation:
        """Rebuild a group on the slots of another pool; ``generation`` is of that pool."""
        seen = self.pool(pool).generation if generation is None else generation
        return self._change(_group_path(group, "move"), {"pool": pool}, seen, deadline_s)

    def plan_resize(self, pool: str, process_on_nodes: Sequence[int]) -> Mapping[str, Any]:
        """Return what a resize would do; nothing is changed. So with the others."""
        return self._plan(_pool_path(pool, "resize"), _resize(process_on_nodes))

    def plan_split(self, pool: str, parts: Sequence[tuple[str, int, Sequence[str]]]) -> Mapping[str, Any]:
        """Return what a split would do."""
        return self._plan(_pool_path(pool, "split"), _split(parts))

    def plan_merge(self, pools: Sequence[str], name: str) -> Mapping[str, Any]:
        """Return what a merge would do."""
        return self._plan(_MERGE, _merge(pools, name))

    def plan_move(self, group: str, pool: str) -> Mapping[str, Any]:
        """Return what a move would do."""
        return self._plan(_group_path(group, "move"), {"pool": pool})

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

    def _change(
        self, path: str, body: Mapping[str, object], generation: int | None, deadline_s: float | None
    ) -> Operation:
        said = {"expected_generation": generation, "deadline_s": deadline_s}
        return operation_of(self.post(path, {**body, **{key: one for key, one in said.items() if one is not None}}))

    def _plan(self, path: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.post(f"{path}?dry_run=true", body)
        return found

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


_MERGE = "/api/v1/resource-pools/merge"


def _id(operation: Operation | str) -> str:
    return operation if isinstance(operation, str) else operation.id


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _pool_path(name: str, action: str) -> str:
    return f"/api/v1/resource-pools/{_quoted(name)}/{action}"


def _group_path(name: str, action: str) -> str:
    return f"/api/v1/worker-groups/{_quoted(name)}/{action}"


def _resize(process_on_nodes: Sequence[int]) -> dict[str, object]:
    return {"process_on_nodes": list(process_on_nodes)}


def _split(parts: Sequence[tuple[str, int, Sequence[str]]]) -> dict[str, object]:
    return {"parts": [{"name": name, "size": size, "groups": list(groups)} for name, size, groups in parts]}


def _merge(pools: Sequence[str], name: str) -> dict[str, object]:
    return {"pools": list(pools), "name": name}
