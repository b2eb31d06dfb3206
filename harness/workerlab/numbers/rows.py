"""Rows for intervals that overlap: one definition for every picture of requests over time."""

import heapq
from collections.abc import Iterable


def row_numbers(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """The row of each interval (start, end), which come by start: the lowest that is free. One
    that begins when another ends may follow it on its row."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    numbers: list[int] = []
    for start, end in intervals:
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, row))
        numbers.append(row)
    return numbers
