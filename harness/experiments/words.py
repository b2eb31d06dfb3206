"""How a study says its numbers in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from harness.numbers.units import three_digits


def amount(value: float) -> str:
    """'3.98', '12.5', '1250', '61 200': three digits, in threes from ten thousand on."""
    if abs(value) >= 10_000:
        return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")
    text = three_digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def connections(count: int) -> str:
    return "1 connection" if count == 1 else f"{count} connections"


def listed(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f} %"
