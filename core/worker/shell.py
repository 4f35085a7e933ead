"""The shell around a user's worker inside its process: builds it, runs its methods, and reports times and sizes.

``shell_class(Rollout)`` is a subclass of ``Rollout`` of the same name, so that the actor is still a ``Rollout`` whose
methods anybody with its handle can call. Building is a call of its own and not the actor's constructor: all processes
of a group start side by side, and a constructor that raises is an answer with a traceback, not a dead process.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
import types
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from socket import socket
from typing import Any

from core.cluster import adopt_environ, environ
from core.cluster.base import shares_a_process
from core.cluster.fetching import assigned_devices
from core.cluster.forks import forked_from
from core.cluster.processes import end_with_parent
from core.data.shares import Receipt
from core.dispatch import registration_of
from core.errors import WorkerStartError
from core.version import PACKAGE_PATH, VERSION
from core.worker.call_header import Header, plain_header
from core.worker.entries import answer_of
from core.worker.facts import RankFacts, device_index, visible_devices
from core.worker.leaving import clean_up, exit_code, is_exit, leave_child, leave_process
from core.worker.method_thread import MethodThread, ThreadState
from core.worker.ports import hold_port
from core.worker.process_info import ProcessInfo, enable_diagnostics
from core.worker.remote_error import user_traceback, words_of, wrapped
from core.worker.work import Work

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
        self._podium_take_place(group, rank, variables)
        try:
            construct: Callable[..., None] = self._podium_class.__init__  # type: ignore[misc]
            construct(self, *args, **kwargs)
        except BaseException as error:
            if isinstance(error, SystemExit) and not is_exit(error):
                raise  # The cluster ends this process.
            code = f" (exit code {exit_code(error)})" if isinstance(error, SystemExit) else ""
            raise WorkerStartError(
                f"{self._podium_class.__name__} of group {group} could not be built on rank {rank}: "
                f"{type(error).__name__}: {words_of(error)}{code}",
                group=group,
                rank=rank,
                method="__init__",
                traceback_text=user_traceback(error),
            ) from None
        return _identity(), _receipt(started_ns)

    def _podium_describe(self) -> tuple[tuple[WorkerIdentity, RankFacts], bytes]:
        """Return this worker's identity and rank facts to a driver that attaches to it; world size 1 without a rank."""
        started_ns = time.monotonic_ns()
        facts = RankFacts.read({"RANK": "0", "WORLD_SIZE": "1", **environ()})
        return (_identity(), facts), _receipt(started_ns)

    def _podium_load_state(self, *states: Any) -> tuple[Any, bytes]:
        """Take over what the old ranks of this group saved; references arrive as their values only one by one."""
        return self._podium_do(_LOAD_STATE, (list(states),), {})

    def _podium_set_rank(self, rank: int, variables: Mapping[str, str]) -> tuple[None, bytes]:
        """Take another place among the ranks; the class's own ``reconfigure`` is asked next."""
        started_ns = time.monotonic_ns()
        self._podium_take_place(self._podium_place[0], rank, variables)
        # It is read from the environment again on next use.
        self.__dict__.pop("_rank_facts", None)
        return None, _receipt(started_ns)

    def _podium_take_place(self, group: str, rank: int, variables: Mapping[str, str]) -> None:
        adopt_environ(variables)
        adopt_environ(device_index(environ(), assigned_devices()))
        self._podium_place = group, rank

    def _podium_ping(self) -> tuple[None, bytes]:
        """Return at once: the offset of the two clocks is estimated from the round trip."""
        return None, _receipt(time.monotonic_ns())

    def _podium_is_alive(self) -> None:
        """Answer that this process lives."""

    def _podium_clean_up(self) -> None:
        """Clean up for the end of this process, and answer when that is done."""
        self._podium_do_clean_up()

    def _podium_do_clean_up(self) -> None:
        fused = self.__dict__.get("_fused_workers") or {}
        clean_up([*fused.values(), self], self._podium_wait_for)

    def _podium_run(self, packed: bytes, /, *args: Any, **kwargs: Any) -> tuple[Any, bytes]:
        """Run a method; return its result and its receipt as two objects, so that the result can stay where it is.

        Raises:
            WorkerMethodError: The method raised.
            RowIdentityError: The padding rows of the result cannot be identified.
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
            work = Work.prepare(self, header, args, kwargs)
            result = work.method(*work.args, **work.kwargs)
            if inspect.isawaitable(result):
                result = self._podium_wait_for(result)
            if forked_from():
                leave_child(None)
            return work.reported(result, started_ns, self._podium_place[0])
        except BaseException as error:
            if forked_from():
                leave_child(error)
            raise wrapped(error, self._podium_place, header, started_ns) from None

    def _podium_wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Return what a sync method gave to be awaited."""
        return asyncio.run(_awaited(awaitable))


class AsyncActorShell(ActorShell):
    """The shell of a class with ``async def`` methods: they run on the actor's own event loop, side by side.

    Its other methods and its constructor run as those of a class without async methods do: one at a time, in order, on
    one thread that is not the loop's, so that each may run a loop of its own. An async method begins when the others
    that were called before it are done.
    """

    def __init__(self) -> None:
        """Have a thread for the methods that are not async."""
        super().__init__()
        self._podium_methods = MethodThread()
        weakref.finalize(self, self._podium_methods.close)
        self._podium_loop: asyncio.AbstractEventLoop | None = None

    async def _podium_construct(  # type: ignore[override]
        self, group: str, rank: int, variables: Mapping[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[WorkerIdentity, bytes]:
        """Build the worker; see ``ActorShell``."""
        self._podium_loop = asyncio.get_running_loop()

        build = super()._podium_construct

        def construct() -> tuple[tuple[WorkerIdentity, bytes], ThreadState]:
            return build(group, rank, variables, args, kwargs), ThreadState.of_this()

        built, state = await asyncio.wrap_future(self._podium_methods.submit(construct))
        # A device that the constructor chose holds for async methods too.
        state.adopt()
        return built

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
        self._podium_loop = asyncio.get_running_loop()
        try:
            if not _is_async(self, header.method):
                run = super()._podium_do
                return await asyncio.wrap_future(self._podium_methods.submit(lambda: run(header, args, kwargs)))
            await self._podium_methods.idle()
            started_ns = time.monotonic_ns()
            work = await asyncio.to_thread(Work.prepare, self, header, args, kwargs)
            result = await work.method(*work.args, **work.kwargs)
            return work.reported(result, started_ns, self._podium_place[0])
        except SystemExit as error:
            if shares_a_process():
                raise
            # Raised here it would end the loop's thread and nothing else: every caller would wait for ever.
            return await leave_process(error, self._podium_place, header.method, self._podium_do_clean_up)
        except BaseException as error:
            raise wrapped(error, self._podium_place, header, started_ns) from None

    async def _podium_clean_up(self) -> None:  # type: ignore[override]
        """Clean up; see ``ActorShell``."""
        self._podium_loop = asyncio.get_running_loop()
        await asyncio.wrap_future(self._podium_methods.submit(self._podium_do_clean_up))

    def _podium_wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Have it awaited on the actor's loop, where what an async method made belongs."""
        loop = self._podium_loop
        if loop is None or not loop.is_running():
            return asyncio.run(_awaited(awaitable))
        value, error = asyncio.run_coroutine_threadsafe(_outcome_of(awaitable), loop).result()
        if error is not None:
            raise error
        return value


def _is_async(worker: object, method: str) -> bool:
    try:
        return inspect.iscoroutinefunction(attrgetter(method)(worker))
    except Exception:
        return False  # Where it is called says what is wrong with it.


async def _outcome_of(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return a value and no error, or an error: one that is to end a process would else end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


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
        if "RANK" in environ():
            adopt_environ(device_index(environ(), assigned_devices()))
        construct: Callable[..., None] = user_class.__init__  # type: ignore[misc]
        construct(self, *args, **kwargs)

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__init__=build, __module__=user_class.__module__, __qualname__=user_class.__qualname__)

    built = types.new_class(user_class.__name__, (shell_class(user_class),), exec_body=fill)
    _self_built[user_class] = built
    return built
