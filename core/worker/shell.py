"""The shell around a user's worker inside its process: builds it, runs its methods, and reports times and sizes.

``shell_class(Rollout)`` is a subclass of ``Rollout`` of the same name, so that the actor is still a ``Rollout`` whose
methods anybody with its handle can call. Building is a call of its own and not the actor's constructor: all processes
of a group start side by side, and a constructor that raises is an answer with a traceback, not a dead process.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import time
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from socket import socket
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from core.cluster import adopt_environ, environ
from core.cluster.processes import end_with_parent
from core.data.batch import payload_bytes
from core.data.direct import kept_here, noting
from core.data.future import DataProtoFuture
from core.data.identity import real_rows
from core.data.private import let_go_of_store, method_ended
from core.data.proto import DataProto
from core.data.receive import views
from core.data.rows import row_count, select_rows
from core.data.shares import Receipt, Share
from core.data.wire import pack
from core.dispatch import registration_of
from core.errors import ShareError, WorkerStartError
from core.version import PACKAGE_PATH, VERSION
from core.worker.call_header import Header, plain_header
from core.worker.entries import answer_of
from core.worker.facts import RankFacts, visible_devices
from core.worker.ports import hold_port
from core.worker.process_info import ProcessInfo, enable_diagnostics
from core.worker.remote_error import user_traceback, words_of, wrapped

_LOAD_STATE = Header("load_state", -1, 0, False, "")


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who answered the call to build a worker."""

    pid: int
    devices: str
    version: str
    path: str
    process_info: ProcessInfo


class ActorShell:
    """The methods that a worker group calls; mixed in front of a user's class by ``shell_class``."""

    _podium_class: type
    _podium_offers_directly: bool = False
    _podium_port: socket | None = None
    _podium_place: tuple[str, int] = ("", -1)

    def __init__(self) -> None:
        """End with the process that keeps this one; the user's constructor runs in ``_podium_construct``."""
        end_with_parent()

    def _podium_hold_port(self, candidates: Sequence[int]) -> tuple[int, bytes]:
        """Find a port for the group's rendezvous and keep others off it while this worker lives."""
        started_ns = time.monotonic_ns()
        self._podium_port = hold_port(candidates)
        # A worker that shares its process with others goes without the process ending.
        weakref.finalize(self, self._podium_port.close)
        return self._podium_port.getsockname()[1], _receipt(started_ns)

    def _podium_construct(
        self, group: str, rank: int, variables: Mapping[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[WorkerIdentity, bytes]:
        """Set the environment, then run the user's constructor.

        Raises:
            WorkerStartError: The constructor raised.
        """
        started_ns = time.monotonic_ns()
        adopt_environ(variables)
        self._podium_place = group, rank
        try:
            construct: Callable[..., None] = self._podium_class.__init__  # type: ignore[misc]
            construct(self, *args, **kwargs)
        except Exception as error:
            raise WorkerStartError(
                f"{self._podium_class.__name__} of group {group} could not be built on rank {rank}: "
                f"{type(error).__name__}: {words_of(error)}",
                group=group,
                rank=rank,
                method="__init__",
                traceback_text=user_traceback(error),
            ) from None
        return _identity(), _receipt(started_ns)

    def _podium_describe(self) -> tuple[tuple[WorkerIdentity, RankFacts], bytes]:
        """Say who this is and which place it was told, to a driver that found this worker; alone without a place."""
        started_ns = time.monotonic_ns()
        facts = RankFacts.read({"RANK": "0", "WORLD_SIZE": "1", **environ()})
        return (_identity(), facts), _receipt(started_ns)

    def _podium_load_state(self, *states: Any) -> tuple[Any, bytes]:
        """Take over what the old ranks of this group saved; references arrive as their values only one by one."""
        return self._podium_do(_LOAD_STATE, (list(states),), {})

    def _podium_set_rank(self, rank: int, variables: Mapping[str, str]) -> tuple[None, bytes]:
        """Take another place among the ranks; the class's own ``reconfigure`` is asked next."""
        started_ns = time.monotonic_ns()
        adopt_environ(variables)
        self._podium_place = self._podium_place[0], rank
        # Read anew from the environment when next asked for.
        self.__dict__.pop("_rank_facts", None)
        return None, _receipt(started_ns)

    def _podium_ping(self) -> tuple[None, bytes]:
        """Answer at once: the round trip tells how the two clocks lie to each other."""
        return None, _receipt(time.monotonic_ns())

    def _podium_is_alive(self) -> None:
        """Answer that this process lives."""

    def _podium_run(self, packed: bytes, /, *args: Any, **kwargs: Any) -> tuple[Any, bytes]:
        """Run a method; return its result and its receipt as two objects, so that the result can stay where it is.

        Raises:
            WorkerMethodError: The method raised.
            RowIdentityError: It cannot be told which rows of the result are padding.
        """
        return self._podium_do(Header.unpack(packed), args, kwargs)

    def _podium_answer(self, packed: bytes, /, *args: Any, **kwargs: Any) -> list[Any] | bytes:
        """Run a method; return result and receipt as one object, for a driver that waits for both.

        Without a result that is the receipt alone: bytes, which Ray sends as they are.
        """
        return _as_one(self._podium_do(Header.unpack(packed), args, kwargs))

    def _podium_do(self, header: Header, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, bytes]:
        started_ns = time.monotonic_ns()
        try:
            work = _Work.prepare(self, header, args, kwargs)
            result = work.method(*work.args, **work.kwargs)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            return work.reported(result, started_ns, self._podium_place[0])
        except BaseException as error:
            raise wrapped(error, self._podium_place, header, started_ns) from None


class AsyncActorShell(ActorShell):
    """The shell of a class with ``async def`` methods: they run on the actor's own event loop, side by side."""

    async def _podium_run(  # type: ignore[override]
        self, packed: bytes, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, bytes]:
        """Run a method; see ``ActorShell``."""
        return await self._podium_do(Header.unpack(packed), args, kwargs)

    async def _podium_answer(  # type: ignore[override]
        self, packed: bytes, /, *args: Any, **kwargs: Any
    ) -> list[Any] | bytes:
        """Run a method; see ``ActorShell``."""
        return _as_one(await self._podium_do(Header.unpack(packed), args, kwargs))

    async def _podium_load_state(self, *states: Any) -> tuple[Any, bytes]:  # type: ignore[override]
        """Take over a state; see ``ActorShell``."""
        return await self._podium_do(_LOAD_STATE, (list(states),), {})

    async def _podium_do(  # type: ignore[override]
        self, header: Header, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, bytes]:
        started_ns = time.monotonic_ns()
        try:
            work = await asyncio.to_thread(_Work.prepare, self, header, args, kwargs)
            result = work.method(*work.args, **work.kwargs)
            if inspect.isawaitable(result):
                result = await result
            return work.reported(result, started_ns, self._podium_place[0])
        except BaseException as error:
            raise wrapped(error, self._podium_place, header, started_ns) from None


def _identity() -> WorkerIdentity:
    return WorkerIdentity(os.getpid(), visible_devices(environ()), VERSION, PACKAGE_PATH, enable_diagnostics())


def _plain_answer(header: Header, is_async: bool) -> Callable[..., Any]:
    if is_async:

        async def answer_async(self: AsyncActorShell, /, *args: Any, **kwargs: Any) -> list[Any] | bytes:
            return _as_one(await self._podium_do(header, args, kwargs))

        return answer_async

    def answer(self: ActorShell, /, *args: Any, **kwargs: Any) -> list[Any] | bytes:
        return _as_one(self._podium_do(header, args, kwargs))

    return answer


def _bare_answer(header: Header, is_async: bool) -> Callable[..., Any]:
    """Return the same entry as a method without parameters."""
    if is_async:

        async def answer_async(self: AsyncActorShell) -> list[Any] | bytes:
            return _as_one(await self._podium_do(header, (), {}))

        return answer_async

    def answer(self: ActorShell) -> list[Any] | bytes:
        return _as_one(self._podium_do(header, (), {}))

    return answer


def _as_one(done: tuple[Any, bytes]) -> list[Any] | bytes:
    return done[1] if done[0] is None else list(done)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@dataclass(slots=True)
class _Work:
    """A method about to run, with its arguments resolved. ``given`` are the batches among them."""

    header: Header
    method: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: tuple[Any, ...]
    n_real: int
    n_padding: int
    note: str = ""

    @classmethod
    def prepare(cls, worker: object, header: Header, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Work:
        """Find the method and fetch the futures among the arguments."""
        let_go_of_store()
        n_real, n_padding = max(header.n_real, 0), header.n_padding
        shares: list[Share] = []
        notes: list[str] = []

        def resolve(value: Any) -> Any:
            if not header.materialize or not isinstance(value, DataProtoFuture):
                return value
            with views() if header.views else nullcontext(), noting(notes):
                resolved, share = value.materialize()
            if share is not None:
                shares.append(share)
            return resolved

        resolved_args = tuple(resolve(value) for value in args)
        resolved_kwargs = {name: resolve(value) for name, value in kwargs.items()}
        if shares:
            n_real, n_padding = _agreed(shares, header)
        # A method may change its batch in place: what is compared later must be what it was given.
        mixed = n_real > 0 and n_padding > 0
        given = tuple(_kept_aside(value) for value in (*resolved_args, *resolved_kwargs.values())) if mixed else ()
        method = attrgetter(header.method)(worker)
        return cls(
            header, method, resolved_args, resolved_kwargs, given, n_real, n_padding, "; ".join(notes) if notes else ""
        )

    def reported(self, result: Any, started_ns: int, group: str) -> tuple[Any, bytes]:
        """Return the result with its receipt; ``group`` is the worker's."""
        finished_ns = time.monotonic_ns()
        method_ended()
        if self.n_padding and isinstance(result, tuple):
            result = self._without_padding_inside(result)
        keep = self._kept(result)
        if keep is not None and not (self.header.trims == "rows" and self.n_padding):
            # The driver joins no rows of this call, or expects no padding in them: what there is ends here.
            result, keep = select_rows(result, keep), None
        rows_out = row_count(result) if self.header.trims else None
        n_bytes = payload_bytes(result)
        said = self.note
        if self.header.transport and n_bytes:
            notes = [said] if said else []
            with noting(notes):
                result = kept_here(result, f"{group}.{self.header.method}", self.header.transport)
            said = "; ".join(notes)
        receipt = Receipt(
            started_ns=started_ns,
            finished_ns=finished_ns,
            rows_in=self.n_real + self.n_padding,
            rows_out=-1 if rows_out is None else rows_out,
            bytes_out=n_bytes,
            n_padding=self.n_padding,
            keep=keep,
            note=said,
        )
        return pack(result) if n_bytes else result, receipt.pack()

    def _without_padding_inside(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Cut the padding rows of the batches in a tuple here: the driver gets one tuple per rank and joins none."""
        cut = []
        for one in results:
            is_batch = isinstance(one, (DataProto, TensorDictBase))
            keep = real_rows(self.given, one, self.n_real, self.n_padding, self.header.method) if is_batch else None
            cut.append(one if keep is None else select_rows(one, keep))
        # A named tuple keeps its type.
        return results._make(cut) if hasattr(results, "_make") else tuple(cut)

    def _kept(self, result: Any) -> tuple[int, ...] | None:
        """Return which rows of the result are real, None for all of them."""
        if self.n_padding and (self.header.trims == "rows" or isinstance(result, DataProto)):
            return real_rows(self.given, result, self.n_real, self.n_padding, self.header.method)
        # A batch that the worker kept from an earlier call, or got by a user's own mode, brings its padding along.
        ids = result.row_ids if isinstance(result, DataProto) else None
        if ids is None or bool((ids >= 0).all()):
            return None
        return tuple(int(index) for index in np.flatnonzero(ids >= 0))


def _agreed(shares: Sequence[Share], header: Header) -> tuple[int, int]:
    """Return the real and the padding rows of this rank's part, which all batches must share if there is padding.

    Without padding one may have a whole number of rows for each row of the other, as where batches are dealt.

    Raises:
        ShareError: Batches meet whose rows do not match.
    """
    parts = {(share.n_real, share.n_padding) for share in shares}
    if header.n_real >= 0:
        parts.add((header.n_real, header.n_padding))
    sizes = sorted(n_real for n_real, _ in parts if n_real)
    if len(parts) > 1 and (any(n_padding for _, n_padding in parts) or any(size % sizes[0] for size in sizes)):
        words = ", ".join(f"{n_real} rows and {n_padding} padding rows" for n_real, n_padding in sorted(parts))
        raise ShareError(
            f"the batches of {header.method}, some of them futures, have different lengths: a rank got {words}; "
            f"they cannot be dealt row by row"
        )
    if header.n_real >= 0:
        return header.n_real, header.n_padding
    return shares[0].n_real, shares[0].n_padding


def _kept_aside(value: Any) -> Any:
    """Copy a batch that holds padding; one rank of a call has such a one, and its share is small."""
    return copy.deepcopy(value) if isinstance(value, (DataProto, TensorDictBase, torch.Tensor)) else value


def _receipt(started_ns: int) -> bytes:
    return Receipt(started_ns, time.monotonic_ns(), 0, -1, 0).pack()


_shells: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def shell_class(user_class: type) -> type:
    """Return the actor class for a user's worker class: the same object each time."""
    known = _shells.get(user_class)
    if known is not None:
        return known
    has_async = any(inspect.iscoroutinefunction(getattr(user_class, name, None)) for name in dir(user_class))
    mixin = AsyncActorShell if has_async else ActorShell

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(
            _podium_class=user_class,
            _podium_offers_directly=False,
            __module__=user_class.__module__,
            __qualname__=user_class.__qualname__,
        )
        for name in dir(user_class):
            registration = registration_of(inspect.getattr_static(user_class, name, None))
            if registration is not None:
                namespace["_podium_offers_directly"] |= bool(registration.tensor_transport)
                header = plain_header(name, registration.materialize_futures, registration.zero_copy)
                namespace[answer_of(name)] = _plain_answer(header, has_async)
                namespace[answer_of(name, takes_arguments=False)] = _bare_answer(header, has_async)

    shell = types.new_class(user_class.__name__, (mixin, user_class), exec_body=fill)
    _shells[user_class] = shell
    return shell


_self_built: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def self_built_class(user_class: type) -> type:
    """Return the shell of a class that is built by its own constructor, for a worker outside any group."""
    known = _self_built.get(user_class)
    if known is not None:
        return known

    def build(self: ActorShell, *args: Any, **kwargs: Any) -> None:
        ActorShell.__init__(self)
        construct: Callable[..., None] = user_class.__init__  # type: ignore[misc]
        construct(self, *args, **kwargs)

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__init__=build, __module__=user_class.__module__, __qualname__=user_class.__qualname__)

    built = types.new_class(user_class.__name__, (shell_class(user_class),), exec_body=fill)
    _self_built[user_class] = built
    return built
