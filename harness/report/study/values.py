"""A study's values as a person says them, and as a machine reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from harness.model import Column, Finding, Table, Value
from harness.numbers.units import MISSING, format_bytes, format_duration, three_digits
from harness.report.messages import heading, text
from harness.report.terminal import clean

DIGITS = 6  # significant ones in a file: no clock of this lab tells more


def finite(value: Value) -> Value:
    """`value`, or None where it is a number that no JSON can hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(value: Value) -> Value:
    """For a file: base units, `DIGITS` significant digits, nothing that is not finite."""
    known = finite(value)
    if not isinstance(known, float):
        return known
    return float(f"{known:.{DIGITS}g}") + 0.0  # not -0.0


def said(column: Column, value: Value) -> str:
    """For a person, in the unit a person would say; a missing value is "-"."""
    known = finite(value)
    if known is None:
        return MISSING
    if isinstance(known, bool):
        return "yes" if known else "no"
    if isinstance(known, str | Finding):
        return clean(text(known)) or MISSING
    if isinstance(known, Mapping):
        return counted(known) or MISSING
    return FORMS[column.form](float(known))


def counted(counts: Mapping[str, int]) -> str:
    """ "no_files 8982, reset 1"."""
    return clean(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


def _count(value: float) -> str:
    """Digits in threes from ten thousand on: "1 000 000"."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 10_000 else f"{value:.0f}"


def _number(value: float) -> str:
    return _count(value) if abs(value) >= 10_000 else _unsigned(three_digits(value))


def _percent(value: float) -> str:
    percent = 100 * value
    return f"{_unsigned(f'{percent:.{0 if abs(percent) >= 10 else 1}f}')} %"


def _unsigned(text: str) -> str:
    """What is rounded to nothing has no sign."""
    return text.removeprefix("-") if float(text) == 0 else text


FORMS: Mapping[str, Callable[[float], str]] = {
    "text": lambda value: f"{value:g}",
    "count": _count,
    "number": _number,
    "seconds": format_duration,
    "bytes": format_bytes,
    "percent": _percent,
}


def to_right(column: Column) -> bool:
    """Numbers stand below each other's last digit."""
    return column.form not in ("text", "counts")


def blank_columns(table: Table) -> tuple[int, ...]:
    """Places of columns in which no row has anything."""
    return tuple(
        place
        for place in range(len(table.columns))
        if all(finite(row[place]) is None for row in table.rows)
    )


def titles(table: Table, places: Iterable[int]) -> str:
    return ", ".join(heading(table.columns[place]) for place in places)
