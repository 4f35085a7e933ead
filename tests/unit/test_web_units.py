"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from web import units


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.4249, "0.42 ms"),
        (12.34, "12.3 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (12_345, "12.3 s"),
        (59_960, "1 m 00 s"),
        (3_725_000, "1 h 02 m"),
        (90_000_000, "1 d 01 h"),
        (-5.0, "−5.00 ms"),
        (-0.001, "0.00 ms"),
    ],
)
def test_a_duration_keeps_about_three_digits(ms: float | None, text: str) -> None:
    assert units.duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(None, "–"), (0, "0:00.000"), (61_234.4, "1:01.234"), (3_723_456, "1:02:03.456"), (-1, "0:00.000")]
)
def test_a_time_since_the_start_reads_like_a_clock(ms: float | None, text: str) -> None:
    assert units.since_start(ms) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (595_591_168, "568 MiB"), (10 * 1024**3, "10.0 GiB")],
)
def test_bytes_are_in_binary_units(n: int, text: str) -> None:
    assert units.bytes_size(n) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.0004, "<0.1 %"), (0.0512, "5.1 %"), (0.1234, "12 %"), (1, "100 %")]
)
def test_a_share_that_is_not_nothing_never_reads_as_nothing(share: float, text: str) -> None:
    assert units.percent(share) == text


def test_rates_counts_and_metrics_are_short() -> None:
    assert [units.rate(x) for x in (0.1234, 12.34, 1234.5)] == ["0.12", "12.3", "1,234"]
    assert units.count(1_000_000) == "1,000,000"
    assert [units.metric(x) for x in (0.123456, 1e-7, float("nan"))] == ["0.1235", "1e-07", "nan"]
