"""The statistical test behind the verdict "slow": is a rank slower than the others by more than chance and 5 %?

In each call a rank gets a score: how many of the other ranks it took longer than by more than ``LEAST_EFFECT`` and
``LEAST_MS``. If all ranks are alike, each place among them is equally likely, whatever the distribution of the times
and however much whole calls differ; so the score has a known mean and variance (Friedman's rank statistic, tested one
rank at a time). Its mean over calls is compared with that, by batch means: scores of consecutive calls are averaged in
blocks that are long enough to be uncorrelated, and the block means have a t distribution.
"""

from __future__ import annotations

import math

import numpy as np

from web.rank_runs import Numbers

LEAST_EFFECT = 0.05
LEAST_MS = 1.0
LEAST_CALLS = 20
# With two or three ranks a score has few values: in few calls, a lasting difference and a long fluctuation look alike.
LEAST_CALLS_OF_FEW_RANKS = 50
FALSE_ALARMS = 0.005
_MOST_BLOCKS = 32
_LEAST_BLOCKS = 8
# One before and one after the shift, and half of one for the choice where to split.
_N_MEANS = 2.5


def scores(times: Numbers, others: Numbers | None = None) -> Numbers:
    """Return each rank's score in each call, in standard deviations from what equal ranks would have.

    Args:
        times: Of shape ``(calls, ranks)``, in ms, with at least two ranks.
        others: What each rank's time is compared with in the columns of the other ranks; ``times`` if left out.
    """
    n_ranks = times.shape[1]
    limits = (times if others is None else others) * (1 + LEAST_EFFECT) + LEAST_MS
    n_slower_than = np.empty_like(times)
    for row, (limit, own) in enumerate(zip(np.sort(limits, axis=1), times, strict=True)):
        n_slower_than[row] = np.searchsorted(limit, own)
    n_slower_than -= limits < times
    score: Numbers = (n_slower_than - (n_ranks - 1) / 2) / math.sqrt((n_ranks**2 - 1) / 12)
    return score


def least_calls(n_ranks: int, correlation_calls: float) -> int:
    """Return how many calls a test needs: enough of them, and enough blocks long enough for ``correlation_calls``."""
    least = LEAST_CALLS if n_ranks > 3 else LEAST_CALLS_OF_FEW_RANKS
    return max(least, _LEAST_BLOCKS * _block_length(correlation_calls))


def windows(n_calls: int, least: int) -> list[int]:
    """Return the numbers of last calls that are tested: all, the last half, the last quarter, down to ``least``."""
    found = []
    while n_calls >= least:
        found.append(n_calls)
        n_calls //= 2
    return found


def correlation_calls(times: Numbers) -> float:
    """Return the integrated autocorrelation time of the ranks' places, in calls: n count as ``n / time`` independent.

    Args:
        times: Of shape ``(calls, ranks)``.
    """
    return autocorrelation_time(np.argsort(np.argsort(times, axis=1), axis=1).astype(np.float64))


def autocorrelation_time(values: Numbers) -> float:
    """Return the integrated autocorrelation time of series, one per column, that fluctuate alike.

    A series that moved to another level is not a fluctuation: the largest shift of each mean is removed first. The
    autocorrelation is averaged over the series, and summed up to the first lag that is at least five times the sum
    (Sokal's window, Monte Carlo Methods in Statistical Mechanics, 1997).
    """
    n_calls = len(values)
    around = _without_shift(values)
    power = np.abs(np.fft.rfft(around, 2 * n_calls, axis=0)) ** 2
    covariance = np.fft.irfft(power.sum(axis=1))[:n_calls]
    if covariance[0] <= 1e-9:
        return 1.0
    correlation = covariance[1:] / covariance[0] * n_calls / np.arange(n_calls - 1, 0, -1)
    time = 1.0
    for _ in range(2):
        # Means were estimated from the same calls, which makes each estimate too small by about time / n_calls each.
        sums = 1 + 2 * np.cumsum(correlation + min(_N_MEANS * time / n_calls, 0.5))
        enough = np.flatnonzero(np.arange(1, n_calls) >= 5 * sums)
        time = max(float(sums[enough[0]] if enough.size else sums.max()), 1.0)
    return time


def _without_shift(values: Numbers) -> Numbers:
    """Return the values of each column less their mean before and after the call that splits them best in two."""
    n_calls = len(values)
    around: Numbers = values - values.mean(axis=0)
    if n_calls < LEAST_CALLS:
        return around
    before = np.arange(1, n_calls)[:, None]
    sums = np.cumsum(around, axis=0)[:-1]
    # The sum of squares that two means explain: each part's sum, squared, by its length; the whole has the sum 0.
    explained = sums**2 / before + sums**2 / (n_calls - before)
    split = np.argmax(explained, axis=0) + 1
    first = np.arange(n_calls)[:, None] < split
    columns = np.arange(values.shape[1])
    sum_first = sums[split - 1, columns]
    shifted: Numbers = around - np.where(first, sum_first / split, -sum_first / (n_calls - split))
    return shifted


def evidence(score: Numbers, correlation_calls: float = 1.0) -> Numbers:
    """Return for each rank by how many standard errors its mean score is above that of equal ranks.

    The t statistic of block means is converted to the normal quantile with the same tail probability by Wallace's
    approximation (Bounds on normal approximations to Student's t, 1959).

    Args:
        score: Of shape ``(calls, ranks)``; one of ``windows`` of all calls.
        correlation_calls: The result of `correlation_calls` for all calls.
    """
    n_calls = score.shape[0]
    mean = score.mean(axis=0)
    n_blocks = max(_LEAST_BLOCKS, min(_MOST_BLOCKS, n_calls // _block_length(correlation_calls)))
    length = n_calls // n_blocks
    blocks = score[n_calls - n_blocks * length :].reshape(n_blocks, length, -1).mean(axis=1)
    around = blocks - blocks.mean(axis=0)
    squares = (around**2).sum()
    left = (around[1:] * around[:-1]).sum() / squares if squares > 0 else 0.0
    left = min(max(left + 1 / n_blocks, 0.0), 0.9)
    variance = (around**2).sum(axis=0) / (n_blocks - 1) * (1 + left) / (1 - left) / n_blocks
    t = mean / np.sqrt(np.maximum(variance, correlation_calls / n_calls))
    df = n_blocks - 1
    quantile = (8 * df + 1) / (8 * df + 3) * np.sqrt(df * np.log1p(t**2 / df))
    z: Numbers = np.sign(t) * quantile
    return z


def _block_length(correlation_calls: float) -> int:
    return math.ceil(2 * correlation_calls)
