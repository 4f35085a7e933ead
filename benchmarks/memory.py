"""How much the driver's resident memory grows during a call, at its peak."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_EVERY_S = 0.002


@dataclass(frozen=True, slots=True)
class Growth:
    """Peak growth in bytes: of memory of the process's own (RssAnon), and of mapped pages of the store (RssShmem).

    Pages of the store are there once, however many processes map them, and stay mapped for the next object.
    """

    own_bytes: int
    shared_bytes: int


def peak_growth(call: Callable[[], object]) -> Growth:
    """Call once and sample this process's resident memory meanwhile, result included; Linux only."""
    gc.collect()
    before = _resident()
    peaks = list(before)
    over = threading.Event()

    def sample() -> None:
        while not over.wait(_EVERY_S):
            for index, n_bytes in enumerate(_resident()):
                peaks[index] = max(peaks[index], n_bytes)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        result = call()
        for index, n_bytes in enumerate(_resident()):
            peaks[index] = max(peaks[index], n_bytes)
        del result
    finally:
        over.set()
        sampler.join()
    return Growth(peaks[0] - before[0], peaks[1] - before[1])


def _resident() -> tuple[int, int]:
    own = shared = 0
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name == "RssAnon":
            own = int(rest.split()[0]) * 1024
        elif name == "RssShmem":
            shared = int(rest.split()[0]) * 1024
    return own, shared
