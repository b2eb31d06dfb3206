from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00 s"), (1.04, "1.04 s"), (0.0123, "12.3 ms"), (0.9996, "1.00 s"), (0.99, "990 ms"),
     (2.5e-6, "2.50 us"), (59.96, "60.0 s"), (119.0, "119 s"), (125.0, "2m 05s"),
     (3600.0, "1h 00m"), (-0.5, "-500 ms"), (None, "-"), (math.nan, "-")],
)  # fmt: skip
def test_durations_are_formatted_for_reading(seconds: float | None, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59.4, "59 s"), (59.6, "1m 00s"), (125, "2m 05s"), (3725, "1h 02m")],
)
def test_a_wait_is_formatted_in_whole_units(seconds: float, text: str) -> None:
    assert units.format_wait(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(512, "512 B"), (22.62 * 1024, "22.6 KB"), (None, "-")]
)
def test_sizes_are_formatted_for_reading(value: float | None, text: str) -> None:
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("scan", "text", "value"),
    [
        (units.scan_duration, "890us", 890e-6),
        (units.scan_duration, "0.89ms", 890e-6),
        (units.scan_duration, "1.04 s", 1.04),
        (units.scan_duration, "2m", 120),
        (units.scan_duration, "1.50h", 5400),
        (units.scan_count, "12", 12),
        (units.scan_count, "1.20k", 1200),
        (units.scan_bytes, "3B", 3),
        (units.scan_bytes, "22.62KB", 22.62 * 1024),
    ],
)
def test_durations_counts_and_sizes_are_scanned(
    scan: Callable[[str], float], text: str, value: float
) -> None:
    assert scan(text) == pytest.approx(value, rel=1e-15, abs=0)


@pytest.mark.parametrize("text", ["", "1", "ms", "1 2s", "-nan", "1e3s", "1,5s", "1K", "1.s"])
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        units.scan_duration(text)


@given(st.text() | st.from_regex(r"-?[0-9.]{1,8} ?([munkMGT]?[sB]?|%)", fullmatch=True))
def test_scanning_garbage_raises_only_value_errors(text: str) -> None:
    for scan in (units.scan_duration, units.scan_count, units.scan_bytes):
        try:
            assert math.isfinite(scan(text))
        except ValueError:
            continue


@given(st.floats(1e-5, 119))
def test_a_formatted_duration_scans_to_itself(seconds: float) -> None:
    assert units.scan_duration(units.format_duration(seconds)) == pytest.approx(seconds, rel=6e-3)


@given(st.floats(0.85, 1e17) | st.integers(1, 10**17))
def test_a_formatted_size_scans_to_itself(value: float) -> None:
    assert units.scan_bytes(units.format_bytes(value)) == pytest.approx(value, rel=6e-3)


@given(st.floats(1e-6, 119))
def test_no_duration_has_four_digits_before_its_point(seconds: float) -> None:
    whole = units.format_duration(seconds).rstrip(" smu").partition(".")[0]
    assert len(whole) <= 3
