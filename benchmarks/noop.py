"""The price of a call: a no-op on four ranks, by bare Ray and by Podium with the recorder off and on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ray

from app.recorder import Recorder, start_run
from benchmarks.measure import Row, measure_in_turn
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core import runtime as runtimes

N_RANKS = 4


class NoOp(Worker):
    """A worker that does nothing, called by Ray and by Podium."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nothing(self) -> None:
        """Do nothing."""


def measure(folder: Path, n_rounds: int, n_calls: int) -> Row:
    """Time the three contenders in turn; the run's file goes to ``folder``."""
    runtime = runtimes.current()
    recorder = start_run(
        folder,
        name="bench",
        script=__file__,
        started_ns=runtime.clock.now_ns(),
        podium_version="bench",
        ray_version=ray.__version__,
    )
    try:
        with (
            RayResourcePool([N_RANKS], max_colocate_count=2) as pool,
            RayWorkerGroup(pool, RayClassWithInitArgs(NoOp)) as group,
        ):
            actors = group.workers
            tap = Tap(recorder)
            contenders: dict[str, Callable[[], object]] = {
                "bare Ray": lambda: ray.get([actor.nothing.remote() for actor in actors]),
                "Podium, recording off": tap.with_recording(False, group.nothing),
                "Podium, recording on": tap.with_recording(True, group.nothing),
            }
            what = f"no-op ONE_TO_ALL call on {N_RANKS} ranks"
            return measure_in_turn(what, "bare Ray", contenders, n_rounds, n_calls)
    finally:
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
