"""The state in the bar of every page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.web_sample import SampleRun
from web.frame import Frame
from web.pill import WAITING, Pill, pill_of
from web.rendering import render_page

RUN = SampleRun(150_000.0)
POOL = RUN.pools()[0]
OPERATION = RUN.operations(1, None)[0]


@pytest.mark.parametrize(
    ("pools", "operations", "pill"),
    [
        ([], [], Pill("running")),
        (["active", "paused"], [], Pill("running")),
        (["paused", "paused"], [], Pill("paused")),
        (["paused", "closed"], [], Pill("paused")),
        (["closed"], [], Pill("running")),
        (["active"], ["succeeded", WAITING], Pill(WAITING, ("op-1",))),
        (["paused"], [WAITING], Pill(WAITING, ("op-0",))),
    ],
)
def test_a_running_run_is_paused_when_all_its_pools_are_and_waits_while_a_change_does(
    pools: list[str], operations: list[str], pill: Pill
) -> None:
    some_pools = tuple(replace(POOL, state=state) for state in pools)
    some_operations = tuple(replace(OPERATION, id=f"op-{i}", state=state) for i, state in enumerate(operations))
    assert pill_of(RUN.run(), some_pools, some_operations) == pill
    over = replace(RUN.run(), state="died")
    assert pill_of(over, some_pools, some_operations) == Pill("died")


def test_every_page_shows_it() -> None:
    source = SampleRun(150_000.0)
    source.pool_states = dict.fromkeys(source.pool_states, "paused")
    assert '<span class="pill state-paused" data-state-pill>' in render_page("calls", source, Frame("calls"))
