"""Row numbers for overlapping intervals, shared by all pictures of requests over time."""

import heapq
from collections.abc import Iterable


def row_numbers(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """The lowest free row for each interval (start, end); they must be sorted by start. An interval
    may follow another on its row when it begins as that one ends."""
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
