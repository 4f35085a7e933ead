"""Workers of the cluster inside this process: a thread each, and the handles by which they are called."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import InvalidStateError
from dataclasses import dataclass
from typing import Any

import cloudpickle

from core.cluster.base import SpawnRequest, adopt_environ, isolate_environ
from core.cluster.local_refs import LocalRef, keep_with_message, numbers, packed, resolve, set_value
from core.cluster.ray_errors import unpacked
from core.errors import WorkerDiedError


@dataclass(frozen=True, slots=True)
class Job:
    method: str
    payload: bytes
    result: LocalRef
    receipt: LocalRef | None
    holds: tuple[object, ...] = ()

    @property
    def refs(self) -> tuple[LocalRef, ...]:
        """Return the references whose values this job sets."""
        return (self.result,) if self.receipt is None else (self.result, self.receipt)


class _Process:
    """A worker: a thread that takes jobs in order, and the object they are run on."""

    def __init__(self, request: SpawnRequest, name: str) -> None:
        """Start the thread; the object is built on it, as it would be in a process of its own."""
        self.name = name
        self.killed = threading.Event()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        cloudpickle.dumps(request.actor_class)  # What Ray could not send fails here too.
        # A copy made of these bytes has lost its file name: breakpoint() and tracebacks would show no source.
        self._class = request.actor_class
        self._arguments = packed((request.args, dict(request.kwargs)))
        self._env = dict(request.env)
        self.has_hook = _has_shutdown_hook(request.actor_class)
        self._lock = threading.Lock()
        self._current: Job | None = None
        self._reason = ""
        self._death_callbacks: list[Callable[[WorkerDiedError], None]] = []
        threading.Thread(target=self._run, name=f"podium-{self.name}", daemon=True).start()

    def give(self, job: Job) -> None:
        """Queue a job, or fail it when the worker is gone."""
        with self._lock:
            if not self.killed.is_set():
                self._jobs.put(job)
                return
        self._fail(job, self._death(job))

    def finish(self) -> None:
        """End when all jobs given until now are done; takes no lock, so the garbage collector may call it."""
        self._jobs.put(None)

    def kill(self, reason: str = "was killed") -> None:
        """End the worker: the job it runs and all that wait fail at once; a running thread is left to run out."""
        with self._lock:
            if self.killed.is_set():
                return
            self._reason = reason
            self.killed.set()
            callbacks, self._death_callbacks = self._death_callbacks, []
            lost = [] if self._current is None else [self._current]
            while not self._jobs.empty():
                if (job := self._jobs.get_nowait()) is not None:
                    lost.append(job)
            self._jobs.put(None)
        for job in lost:
            self._fail(job, self._death(job))
        for callback in callbacks:
            threading.Thread(
                target=callback, args=(self._death(),), name=f"podium-death-{self.name}", daemon=True
            ).start()

    def on_death(self, callback: Callable[[WorkerDiedError], None]) -> None:
        """Call ``callback`` on another thread when the worker ends; at once when it has."""
        with self._lock:
            if not self.killed.is_set():
                self._death_callbacks.append(callback)
                return
        callback(self._death())

    def _run(self) -> None:
        isolate_environ()
        adopt_environ(self._env)
        try:
            args, kwargs = pickle.loads(self._arguments[0])
            actor = self._class(*map(resolve, args), **{name: resolve(value) for name, value in kwargs.items()})
        except BaseException as error:
            self.kill(f"died, its constructor raised {type(error).__name__}: {error}")
            return
        while (job := self._jobs.get()) is not None:
            if self._begin(job):
                self._do(actor, job)
                with self._lock:
                    self._current = None
        self.kill("ended, as no handle of it was held any more")

    def _begin(self, job: Job) -> bool:
        """Make ``job`` the one that runs; one taken while the worker was killed fails instead."""
        with self._lock:
            if not self.killed.is_set():
                self._current = job
                return True
        self._fail(job, self._death(job))
        return False

    def _do(self, actor: Any, job: Job) -> None:
        try:
            args, kwargs = unpacked(job.payload, on_worker=True)
            args = tuple(resolve(value) for value in args)
            kwargs = {name: resolve(value) for name, value in kwargs.items()}
            outcome = getattr(actor, job.method)(*args, **kwargs)
            if inspect.isawaitable(outcome):
                outcome = asyncio.run(_await(outcome))
            values = outcome if job.receipt is not None else (outcome,)
            made = [packed(value) for value in values]
        except SystemExit as error:
            self.kill(f"ended by itself with exit code {error.code}, SystemExit was raised in a method")
            return
        except BaseException as error:
            self._fail(job, error)
            return
        for ref, (pickled, holds) in zip(job.refs, made, strict=True):
            set_value(ref, pickled, holds)

    def _death(self, job: Job | None = None) -> WorkerDiedError:
        method = "" if job is None else job.method
        return WorkerDiedError(f"worker {self.name} {self._reason}", worker=self.name, pid=os.getpid(), method=method)

    @staticmethod
    def _fail(job: Job, error: BaseException) -> None:
        try:
            error = pickle.loads(cloudpickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        for ref in job.refs:
            with contextlib.suppress(InvalidStateError):  # It came to something before.
                ref.future.set_exception(error)


class LocalActor:
    """The handle of a worker. As on Ray, a worker ends when the last handle of it is gone.

    ``handle.method.remote(...)`` runs any method and returns a reference, which ``core.get`` resolves.
    """

    def __init__(self, request: SpawnRequest) -> None:
        """Start the worker."""
        self.number = next(numbers)
        self.name = request.name or f"worker-{self.number}"
        self.was_ended = False
        self.process = _Process(request, self.name)
        self.has_hook = self.process.has_hook
        self.killed = self.process.killed
        weakref.finalize(self, self.process.finish).atexit = False
        _live_actors[self.number] = self

    def give(self, job: Job) -> None:
        """Queue a job, or fail it when the worker is gone."""
        self.process.give(job)

    def kill(self, reason: str = "was killed") -> None:
        """End the worker: the job it runs and all that wait fail at once; a running thread is left to run out."""
        self.process.kill(reason)

    def on_death(self, callback: Callable[[WorkerDiedError], None]) -> None:
        """Call ``callback`` on another thread when the worker ends; at once when it has."""
        self.process.on_death(callback)

    def __getattr__(self, name: str) -> _RemoteMethod:
        """Return what calls a method of the worker."""
        if name.startswith("__") or name in {"process", "number"}:
            raise AttributeError(name)
        return _RemoteMethod(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a number: it arrives as this very handle, which the message keeps alive."""
        keep_with_message(self)
        return _find_actor, (self.number,)


class _RemoteMethod:
    """A method of a worker, called as on Ray."""

    def __init__(self, actor: LocalActor, name: str) -> None:
        self._actor = actor
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> LocalRef:
        """Run the method; return a reference of its result."""
        return ask(self._actor, self._name, args, kwargs)


def ask(actor: LocalActor, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LocalRef:
    """Pickle the arguments and queue the job for its one result."""
    payload, holds = packed((args, dict(kwargs)))
    result = LocalRef()
    actor.give(Job(method, payload, result, None, holds))
    return result


_live_actors: weakref.WeakValueDictionary[int, LocalActor] = weakref.WeakValueDictionary()


def _find_actor(number: int) -> LocalActor:
    return _live_actors[number]


def _has_shutdown_hook(actor_class: type) -> bool:
    """Whether an actor has something to do at its end: its class, or that of one of the roles that share it."""
    roles = getattr(actor_class, "podium_roles", {})
    classes = (actor_class, *(role.user_class for role in roles.values()))
    cleans = hasattr(actor_class, "_podium_clean_up")
    return cleans and any(hasattr(one, "__ray_shutdown__") for one in classes)


async def _await(awaitable: Any) -> Any:
    return await awaitable
