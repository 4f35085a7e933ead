"""Verdicts about slow ranks: false alarms, power, causes; on simulated runs."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from web.rank_runs import MethodRuns, Numbers
from web.slowness import evidence
from web.verdicts import MethodVerdict, verdict

SLOW = bool(os.environ.get("PODIUM_SLOW"))
NOISES = ("normal", "log-normal", "heavy-tailed", "autocorrelated", "strongly autocorrelated")


def simulated(dice: np.random.Generator, noise: str, n_calls: int, n_ranks: int) -> Numbers:
    """Return run times around 100 ms of ranks that are all alike; whole calls differ too."""
    shape = (n_calls, n_ranks)
    if noise == "normal":
        times = np.clip(dice.normal(1.0, 0.1, shape), 0.1, None)
    elif noise == "log-normal":
        times = dice.lognormal(0.0, 0.5, shape)
    elif noise == "heavy-tailed":
        times = 1 + 0.1 * np.abs(dice.standard_t(1.5, shape))
    else:
        phi = 0.97 if noise.startswith("strongly") else 0.8
        steps = dice.normal(0.0, 1.0, shape)
        steps[1:] *= math.sqrt(1 - phi**2)
        for call in range(1, n_calls):
            steps[call] += phi * steps[call - 1]
        times = np.exp(0.2 * steps)
    found: Numbers = 100.0 * times * dice.lognormal(0.0, 0.3, (n_calls, 1))
    return found


def runs_of(
    run_ms: Numbers,
    *,
    rows: Numbers | None = None,
    starts_ms: Numbers | float = 0.0,
    ended_ms: Numbers | None = None,
    clock_error_ms: float = 0.0,
) -> MethodRuns:
    """Return the runs of calls, one a second, whose ranks start together unless ``starts_ms`` differ."""
    n_calls, n_ranks = run_ms.shape
    began = 1000.0 * np.arange(1, n_calls + 1)[:, None] + starts_ms
    return MethodRuns(
        group="rollout",
        method="generate",
        n_ranks=n_ranks,
        ranks=tuple(range(n_ranks)),
        call_id=np.arange(1, n_calls + 1),
        run_ms=run_ms,
        ended_ms=began + run_ms if ended_ms is None else ended_ms,
        rows=np.full(run_ms.shape, 64.0) if rows is None else rows,
        bytes=np.zeros(run_ms.shape),
        clock_error_ms=np.full(n_ranks, clock_error_ms),
    )


def judged(runs: MethodRuns, nodes: dict[tuple[str, int], str] | None = None) -> MethodVerdict:
    return verdict(runs, nodes or {}, runs.n_ranks)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("n_ranks", "n_runs"), [(2, 30), (8, 30), (64, 5)])
def test_ranks_that_are_alike_are_not_called_slow(noise: str, n_ranks: int, n_runs: int) -> None:
    dice = np.random.default_rng(n_ranks)
    found = [judged(runs_of(simulated(dice, noise, 1000, n_ranks))).slow for _ in range(n_runs)]
    assert not any(found)


@pytest.mark.skipif(not SLOW, reason="takes minutes: PODIUM_SLOW=1")
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("n_ranks", [2, 8, 64, 1024])
def test_at_most_one_false_alarm_in_a_hundred_runs_of_a_thousand_calls(noise: str, n_ranks: int) -> None:
    dice = np.random.default_rng(1000 + n_ranks)
    assert sum(bool(judged(runs_of(simulated(dice, noise, 1000, n_ranks))).slow) for _ in range(100)) <= 1


@pytest.mark.parametrize("noise", [0.03, 0.1, 0.15])
def test_a_rank_that_is_slower_by_a_third_is_found_within_fifty_calls(noise: float) -> None:
    dice = np.random.default_rng(5)
    n_found = 0
    for _ in range(100):
        run_ms = 100.0 * dice.lognormal(0.0, noise, (50, 8)) * dice.lognormal(0.0, 0.3, (50, 1))
        run_ms[:, 5] *= 1.3
        slow = judged(runs_of(run_ms)).slow
        n_found += [one.rank for one in slow] == [5] and slow[0].cause == "rank"
    assert n_found >= 95


def test_the_verdict_names_the_ratio_and_since_when() -> None:
    dice = np.random.default_rng(2)
    run_ms = 100.0 * dice.lognormal(0.0, 0.05, (400, 8))
    run_ms[300:, 3] *= 1.3
    (slow,) = judged(runs_of(run_ms)).slow
    assert (slow.rank, slow.cause, slow.is_ongoing, slow.from_start) == (3, "rank", True, False)
    assert slow.ratio == pytest.approx(1.3, rel=0.05)
    assert abs(slow.since_call - 301) <= 2
    assert slow.since_ms == 1000.0 * slow.since_call
    assert slow.lost_ms == pytest.approx(np.maximum(run_ms - np.median(run_ms, 1)[:, None], 0)[300:, 3].sum(), rel=0.03)


def test_a_rank_that_recovered_long_ago_is_not_called_slow_now() -> None:
    dice = np.random.default_rng(3)
    run_ms = 100.0 * dice.lognormal(0.0, 0.01, (400, 8))
    run_ms[100:140, 3] *= 1.3
    assert judged(runs_of(run_ms)).state == "even"


def test_less_than_the_least_effect_is_not_reported_however_sure_it_is() -> None:
    dice = np.random.default_rng(4)
    run_ms = 100.0 * dice.lognormal(0.0, 0.01, (2000, 8))
    run_ms[:, 1] *= 1.03
    assert judged(runs_of(run_ms)).state == "even"
    assert judged(runs_of(run_ms / 1000 * np.where(np.arange(8) == 2, 1.3, 1.0))).state == "even"


def test_a_rank_with_more_rows_is_not_blamed_for_their_time() -> None:
    dice = np.random.default_rng(6)
    rows = np.full((200, 8), 64.0)
    rows[:, 5] *= 1.3
    run_ms = rows * dice.lognormal(0.0, 0.05, rows.shape)
    (slow,) = judged(runs_of(run_ms, rows=rows)).slow
    assert (slow.rank, slow.cause) == (5, "input")
    assert slow.input_ratio == pytest.approx(1.3, rel=0.02)
    run_ms[:, 5] *= 1.3
    (slow,) = judged(runs_of(run_ms, rows=rows)).slow
    assert (slow.rank, slow.cause) == (5, "rank")


def test_a_slow_node_is_named_for_its_four_ranks() -> None:
    dice = np.random.default_rng(7)
    run_ms = 100.0 * dice.lognormal(0.0, 0.08, (100, 8))
    run_ms[:, 4:] *= 1.3
    nodes = {("rollout", rank): f"node-{rank // 4}" for rank in range(8)}
    found = judged(runs_of(run_ms), nodes)
    assert {(one.rank, one.cause, one.node) for one in found.slow} == {(rank, "node", "node-1") for rank in range(4, 8)}
    run_ms = 100.0 * dice.lognormal(0.0, 0.08, (100, 8))
    run_ms[:, 4] *= 1.3
    assert [(one.rank, one.cause) for one in judged(runs_of(run_ms), nodes).slow] == [(4, "rank")]


def test_a_slow_rank_that_starts_early_enough_is_told_as_that_and_not_blamed() -> None:
    dice = np.random.default_rng(5)
    run_ms = 100.0 * np.clip(dice.normal(1.0, 0.05, (300, 16)), 0.5, None)
    run_ms[:, 2] *= 1.3
    found = judged(runs_of(run_ms, starts_ms=np.linspace(0.0, 150.0, 16)))
    assert (found.state, found.slow) == ("rotating", ())
    (early,) = found.early
    assert (early.rank, round(early.ratio, 1), early.from_start) == (2, 1.3, True)
    assert judged(runs_of(run_ms)).early == ()


def test_a_rank_that_starts_early_and_waits_in_a_collective_is_not_slow() -> None:
    dice = np.random.default_rng(8)
    starts_ms = dice.uniform(19.0, 21.0, (200, 4))
    starts_ms[:, 0] = 0.0
    ended_ms = 1000.0 * np.arange(1, 201)[:, None] + 120.0 + dice.uniform(0.0, 0.5, (200, 4))
    run_ms = ended_ms - 1000.0 * np.arange(1, 201)[:, None] - starts_ms
    found = judged(runs_of(run_ms, ended_ms=ended_ms))
    assert (found.slow, found.finish_together) == ((), True)
    late = judged(runs_of(run_ms, starts_ms=0.0))
    assert [one.rank for one in late.slow] == [0], "it does finish late: this is not about the method's other numbers"


def test_lateness_within_the_error_of_the_clocks_is_not_reported() -> None:
    dice = np.random.default_rng(9)
    run_ms = 100.0 * dice.lognormal(0.0, 0.02, (100, 4))
    run_ms[:, 2] += 20.0
    assert [one.rank for one in judged(runs_of(run_ms, clock_error_ms=5.0)).slow] == [2]
    assert judged(runs_of(run_ms, clock_error_ms=40.0)).slow == ()


def test_ranks_that_take_turns_are_rotating() -> None:
    dice = np.random.default_rng(10)
    run_ms = 100.0 * dice.lognormal(0.0, 0.02, (200, 8))
    run_ms[np.arange(200), np.arange(200) % 8] *= 1.5
    found = judged(runs_of(run_ms))
    assert (found.state, found.n_behind, found.slow) == ("rotating", 200, ())


def test_a_single_long_call_is_a_one_off() -> None:
    dice = np.random.default_rng(11)
    run_ms = 100.0 * dice.lognormal(0.0, 0.02, (200, 8))
    run_ms[0, 6] = 4000.0
    found = judged(runs_of(run_ms))
    assert (found.state, [(one.rank, one.call_id, one.run_ms) for one in found.one_offs]) == ("even", [(6, 1, 4000.0)])


def test_few_calls_make_no_verdict() -> None:
    run_ms = np.full((19, 8), 100.0)
    run_ms[:, 1] = 300.0
    found = judged(runs_of(run_ms))
    assert (found.state, found.n_calls, found.least_calls) == ("few", 19, 20)
    assert judged(runs_of(np.full((1, 2), 5.0))).state == "few"


def test_the_evidence_is_the_t_statistic_as_a_normal_quantile() -> None:
    # Ten blocks of one call with mean 2 and standard deviation 1.5: t = 4.216 with 9 degrees of freedom, one-sided
    # p = 0.00112, of which the normal quantile is 3.056; made of alternating scores, so that no block is correlated.
    score = np.array([2.0 + 1.5 * math.sqrt(0.9) * (-1) ** call for call in range(10)])[:, None]
    assert evidence(score, 0.5)[0] == pytest.approx(3.056, abs=0.15)
