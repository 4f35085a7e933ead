"""The thread on which a worker with an event loop runs what is not async: its constructor and its sync methods."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class MethodThread:
    """Runs functions one at a time, in order, on one thread and in one context, as a worker's main thread would."""

    def __init__(self) -> None:
        """Take this thread's context; the thread itself starts with the first function."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._context = contextvars.copy_context()
        self._last: Future[Any] | None = None
        self._started = False

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function after those submitted before it; call this from one thread."""
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        if not self._started:
            self._started = True
            # A daemon: a process that leaves does not wait for a method that never ends.
            # Named after the thread of its worker: on the local cluster a process has the threads of many.
            name = f"{threading.current_thread().name}-methods"
            threading.Thread(target=_run, args=(self._jobs, self._context), name=name, daemon=True).start()
        self._last = future
        self._jobs.put(job)
        return future

    async def idle(self) -> None:
        """Wait until what was submitted so far is done, whatever came of it."""
        last = self._last
        if last is not None and not last.done():
            await asyncio.wait([asyncio.wrap_future(last)])

    def close(self) -> None:
        """End the thread once it has done what was submitted."""
        self._jobs.put(None)


def _run(jobs: queue.SimpleQueue[Callable[[], None] | None], context: contextvars.Context) -> None:
    # ``asyncio.get_event_loop().run_until_complete(...)`` works on a main thread, so it must here.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        while (job := jobs.get()) is not None:
            context.run(job)
            del job
    finally:
        loop.close()


@dataclass(frozen=True, slots=True)
class ThreadState:
    """What torch keeps per thread and a constructor may have set: the devices, and whether gradients are recorded."""

    device: torch.device
    cuda_device: int
    records_gradients: bool

    @classmethod
    def of_this(cls) -> ThreadState:
        """Read it on this thread."""
        cuda_device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # type: ignore[no-untyped-call]
        return cls(torch.get_default_device(), cuda_device, torch.is_grad_enabled())

    def adopt(self) -> None:
        """Set it on this thread, as far as it differs."""
        if self.cuda_device >= 0:
            torch.cuda.set_device(self.cuda_device)
        if torch.get_default_device() != self.device:
            torch.set_default_device(self.device)
        if torch.is_grad_enabled() != self.records_gradients:
            torch.set_grad_enabled(self.records_gradients)
