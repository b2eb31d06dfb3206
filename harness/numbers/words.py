"""Numbers as a person says them, for the sentences of the analysis."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A duration in seconds, in the unit a person would say: '1.0 s', '52 ms', '0.21 ms'."""
    if value >= 0.9995:
        return f"{value:.1f} s"
    if value >= 0.00995:
        return f"{value * 1e3:.0f} ms"
    return f"{value * 1e3:.2g} ms" if value > 0 else "0 ms"


def number(value: float) -> str:
    """A count or rate in two or three digits, without exponent: '4.0', '12.5', '1250'."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.3g}"


def plural(count: int, noun: str) -> str:
    """'1 request', '2 requests'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
