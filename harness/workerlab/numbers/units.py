"""One table of units to format with ("12.3 ms"), and to parse what load tools print ("890us",
"1.20k", "22.62KB")."""

import math
import re

# Each table: unit -> how many base units it is, from small to large
DURATION = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
COUNT = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
# wrk's "KB" is 1024 bytes (its units.c), and so is the lab's.
BYTES = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40, "PB": 2.0**50}

MISSING = "-"

_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s?([A-Za-z]*)")


def _scan(text: str, table: dict[str, float], what: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * table.get(match[2], math.nan) if match else math.nan
    if not math.isfinite(value):
        raise ValueError(f"not a {what}: {text!r}")
    return value


def scan_duration(text: str) -> float:
    """Seconds from "890us", "1.04 s", "2m"; the unit is required. ValueError otherwise."""
    return _scan(text, DURATION, "duration")


def scan_count(text: str) -> float:
    """A bare number from "12", "1.20k", "3 M". ValueError otherwise."""
    return _scan(text, COUNT, "count")


def scan_bytes(text: str) -> float:
    """Bytes from "512B", "22.62KB"; the unit is required. ValueError otherwise."""
    return _scan(text, BYTES, "size")


def three_digits(value: float) -> str:
    """About three significant digits, never fewer than the whole part has: "3.98", "1250"."""
    size = abs(value)
    return f"{value:z.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def _format(value: float | None, table: dict[str, float]) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    unit = next(iter(table)) if value else next(unit for unit, size in table.items() if size == 1.0)
    for larger, size in table.items():
        # Rounded to three digits: 999.6 ms is printed as 1.00 s.
        if abs(value) / size >= 0.9995:
            unit = larger
    return f"{three_digits(value / table[unit])} {unit}"


# Seconds up to two minutes, as people say it.
_SPOKEN = {unit: size for unit, size in DURATION.items() if unit not in ("ns", "m", "h")}


def format_duration(seconds: float | None) -> str:
    """Like "12.3 ms", "1.04 s", "2m 05s", "1h 02m"; "-" for a missing or non-finite one."""
    if seconds is None or not math.isfinite(seconds) or abs(seconds) < 119.5:
        return _format(seconds, _SPOKEN)
    return ("-" if seconds < 0 else "") + _clock(round(abs(seconds)))


def format_wait(seconds: float) -> str:
    """A time to wait for, without fractions: "45 s", "2m 05s", "1h 02m"."""
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 60 else _clock(whole)


def _clock(whole: int) -> str:
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = round(whole / 60)
    return f"{minutes // 60}h {minutes % 60:02d}m"


def format_bytes(value: float | None) -> str:
    """Like "512 B", "22.6 KB" (1 KB = 1024 bytes); "-" for a missing one."""
    if value is not None and abs(value) < 1000 and float(value).is_integer():
        return f"{int(value)} B"
    return _format(value, BYTES)
