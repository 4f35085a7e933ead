"""Where the ranks of a call are, of workers that are threads."""

from __future__ import annotations

import time

import pytest

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.errors import UnknownNameError
from core.health.stacks import dump
from core.testing import local_controller
from tests.group_workers import Held, Waiting


def test_the_stacks_of_a_call_in_flight_are_of_the_ranks_that_are_out() -> None:
    Held.gate.clear()
    with local_controller() as (controller, seen):
        group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Waiting))
        group.wait_later()
        try:
            # The ranks are out from the moment they are asked: their threads may get there a little later.
            deadline = time.monotonic() + 5
            while True:
                stacks = dump(controller.runtime, 1)
                assert list(stacks) == [0, 1]
                if all("in wait_later" in text and "Held.gate.wait" in text for text in stacks.values()):
                    break
                assert time.monotonic() < deadline, stacks
        finally:
            Held.gate.set()
        seen.last_call()
        with pytest.raises(UnknownNameError, match="no call 1 is in flight"):
            dump(controller.runtime, 1)
