"""Bins of the latency histograms: pure arithmetic.

Percentiles cannot be merged from percentiles, counts can. A bin is a quarter of an octave of nanoseconds, so a
percentile read from bins is at most 10 % off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PER_OCTAVE = 4
# Lengths are whole numbers of 63 bits.
N_BINS = 63 * PER_OCTAVE


def bin_of(length_ns: int) -> int:
    """Return the bin of a length; all below 2 ns are in bin 0."""
    return int(PER_OCTAVE * math.log2(length_ns)) if length_ns > 1 else 0


def bin_from_ns(index: int) -> float:
    """Return where a bin begins; it ends where the next one begins."""
    return float(2 ** (index / PER_OCTAVE))


def percentile_ns(counts: Mapping[int, int], share: float) -> float:
    """Return the length below which ``share`` (0..1) of the counted ones are, 0 when none were counted.

    Within a bin, lengths are assumed to be evenly spread on the logarithmic scale.
    """
    wanted = share * sum(counts.values())
    below = 0
    for index in sorted(counts):
        n = counts[index]
        if n and below + n >= wanted:
            return bin_from_ns(index) * 2 ** ((wanted - below) / n / PER_OCTAVE)
        below += n
    return 0.0
