"""The price of a call: a no-op on every rank, by bare Ray, by Podium with the recorder off and on, and by verl."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from app.recorder import Recorder, start_run
from benchmarks.measure import Effort, Row, Target, measure_in_turn
from core import runtime as runtimes

_TARGETS = (
    Target("Podium, recording on", "bare Ray", 1.10),
    Target("Podium, recording on", "Podium, recording off", 1.03),
)


def measure(group: Any, verl: tuple[Any, Any] | None, folder: Path, effort: Effort) -> Row:
    """Time the contenders in turn; the run's file goes to ``folder``."""
    runtime = runtimes.current()
    recorder = start_run(
        folder,
        name="bench",
        script=__file__,
        started_ns=runtime.clock.now_ns(),
        podium_version="bench",
        ray_version=ray.__version__,
    )
    actors = group.workers
    tap = Tap(recorder)
    contenders: dict[str, Callable[[], object]] = {
        "bare Ray": lambda: ray.get([actor.nothing.remote() for actor in actors]),
        "Podium, recording off": tap.with_recording(False, group.nothing),
        "Podium, recording on": tap.with_recording(True, group.nothing),
    }
    if verl is not None:
        contenders["verl"] = verl[0].nothing
    try:
        what = f"no-op ONE_TO_ALL call on {len(actors)} ranks"
        return measure_in_turn(what, "bare Ray", contenders, effort, _TARGETS)
    finally:
        runtime.bus.unsubscribe(recorder)
        recorder.close(status="ended")


class Tap:
    """Connects the recorder to the bus or takes it off, so that one run measures both."""

    def __init__(self, recorder: Recorder) -> None:
        """Start with the recorder off."""
        self._recorder = recorder
        self._on = False

    def with_recording(self, on: bool, call: Callable[[], object]) -> Callable[[], object]:
        """Return ``call`` with the recorder on or off; only the first call of a block pays for the switch."""

        def switched() -> object:
            if self._on != on:
                bus = runtimes.current().bus
                (bus.subscribe if on else bus.unsubscribe)(self._recorder)
                self._on = on
            return call()

        return switched
