"""Actor classes for the contract of clusters: their methods are named as a shell's are, and answer in pairs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from core.cluster import adopt_environ, environ
from core.errors import WorkerMethodError


class Rooted:
    """Cannot be unpickled anywhere but on the thread where it was pickled."""

    def __getstate__(self) -> dict[str, object]:
        """Say where this is."""
        return {"place": (os.getpid(), threading.get_ident())}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Raise elsewhere."""
        if state["place"] != (os.getpid(), threading.get_ident()):
            raise KeyError("cannot live here")


class Echo:
    """Answers, remembers, fails, sleeps."""

    def __init__(self, seen: list[Any] | None = None, more: Any = None) -> None:
        """Remember what is given, by default nothing."""
        self.seen: list[Any] = list(seen or []) if more is None else [*(seen or []), more]

    def _podium_echo(self, *args: Any, **kwargs: Any) -> tuple[Any, bytes]:
        """Return what came, and a receipt."""
        self.seen.append((args, kwargs))
        return (args, kwargs), b"receipt"

    def _podium_answer_echo(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return what came and a receipt as one object."""
        return [(args, kwargs), b"receipt"]

    def _podium_seen(self) -> tuple[list[Any], bytes]:
        """Return what came so far."""
        return self.seen, b""

    def _podium_change(self, value: list[int]) -> tuple[list[int], bytes]:
        """Change the argument."""
        value.append(99)
        return value, b""

    def _podium_fail(self) -> tuple[None, bytes]:
        """Raise one of core's errors with fields."""
        cause = KeyError("k")
        raise WorkerMethodError("it went wrong", group="g", rank=3, method="m", cause=cause, cause_type="KeyError")

    def _podium_rooted(self) -> tuple[Rooted, bytes]:
        """Return what nobody else can unpickle."""
        return Rooted(), b"receipt"

    def _podium_sleep(self, seconds: float) -> tuple[int, bytes]:
        """Sleep."""
        time.sleep(seconds)
        return os.getpid(), b""

    def _podium_environ(self, name: str) -> tuple[str | None, bytes]:
        """Return a variable of this worker's environment."""
        return environ().get(name), b""

    def _podium_adopt(self, name: str, value: str) -> tuple[None, bytes]:
        """Set a variable of this worker's environment."""
        adopt_environ({name: value})
        return None, b""


class Awaiting(Echo):
    """The same with a coroutine."""

    async def _podium_async(self, value: int) -> tuple[int, bytes]:
        """Answer from a coroutine."""
        await asyncio.sleep(0.001)
        return value + 1, b""


class Stillborn:
    """Does not come up."""

    def __init__(self) -> None:
        """Raise."""
        raise RuntimeError("no such file")

    def _podium_echo(self) -> tuple[None, bytes]:
        """Never run."""
        return None, b""
