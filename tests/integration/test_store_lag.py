"""The writer's lag: how long events wait to be on file, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.recorder import start_run
from app.store.reader import Reader
from core.events import Notice

pytestmark = pytest.mark.integration


def test_an_idle_time_before_an_event_is_no_lag(tmp_path: Path) -> None:
    recorder = start_run(tmp_path, name="lag", script="x", started_ns=time.time_ns(), podium_version="", ray_version="")
    reader = Reader(recorder.path)
    try:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            time.sleep(0.1)
        recorder.observe(Notice(time.time_ns(), "info", "late"))
        assert recorder.flush(5.0)
        assert reader.recorder().n_recorded == 1
        assert reader.recorder().writer_lag_ms < 1000
    finally:
        reader.close()
        recorder.close()
