"""What can be said of the arithmetic example's driver without running it."""

from __future__ import annotations

from pathlib import Path

DRIVER = Path(__file__).parents[2] / "examples" / "arithmetic_rl.py"


def test_the_driver_can_be_read_in_one_sitting_and_names_neither_ray_nor_a_process_group() -> None:
    source = DRIVER.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    assert "import ray" not in source
    assert "init_process_group" not in source
