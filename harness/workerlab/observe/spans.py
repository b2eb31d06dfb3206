"""Reads the span maps that the probe leaves in a trial's directory: at its end, and while they
grow, for the requests that each worker is serving."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, repeat, takewhile
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from workerlab.model import Span, SpanCost, Spans
from workerlab.server.inside.maps import (
    COSTS,
    HEADER_BYTES,
    READ_RECORDS,
    SPANS,
    MapHeader,
    header,
    records,
)

PATTERN = f"{SPANS.kind}-*.map"
RECORD = SPANS.record


def parse_map(data: bytes, costs_data: bytes | None = None) -> tuple[int, bool, list[Span]]:
    """(pid, full, spans in order of start) from one map's bytes. `costs_data`: the bytes of its map
    of costs. Raises ValueError if they are not whole maps."""
    pid, _, full = header(data, SPANS)
    if costs_data is not None:
        span_costs = chain(parse_costs(costs_data), repeat(None))
        return pid, full, [
            Span(pid, start, end or None, accepted or None, _name(request_id), cost)
            for (start, end, accepted, request_id), cost in zip(
                records(data, SPANS), span_costs, strict=False
            )
            if start
        ]  # fmt: skip
    spans = [
        Span(pid, start, end or None, accepted or None, _name(request_id))
        for start, end, accepted, request_id in records(data, SPANS)
        if start
    ]
    return pid, full, spans


def parse_costs(data: bytes) -> list[SpanCost | None]:
    """The costs in a map's bytes, None for requests that did not end. Raises ValueError if they
    are not a whole map of costs."""
    header(data, COSTS)
    return [
        SpanCost(cpu, queued, steps or None, held_up, route - 1 if route else None, *gil)
        if cpu
        else None
        for cpu, queued, steps, held_up, route, *gil in records(data, COSTS)
    ]


def _name(request_id: bytes) -> str | None:
    return request_id.rstrip(b"\0").decode("ascii", "replace") if request_id[0] else None


def read_spans(directory: Path) -> Spans:
    """All spans of a trial. Raises ValueError or OSError if a map cannot be read."""
    spans: list[Span] = []
    full: list[int] = []
    for path in sorted(directory.glob(PATTERN)):
        costs_path = path.with_name(path.name.replace(SPANS.kind, COSTS.kind, 1))
        costs_data = costs_path.read_bytes() if costs_path.exists() else None
        pid, was_full, worker_spans = parse_map(path.read_bytes(), costs_data)
        spans += worker_spans
        full += [pid] * was_full
    return Spans(tuple(spans), tuple(full))


def served(directory: Path) -> set[int]:
    """Pids of the workers that have begun a request."""
    pids = set()
    for path in directory.glob(PATTERN):
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES + RECORD.size)
        if len(head) == HEADER_BYTES + RECORD.size and any(head[HEADER_BYTES:]):
            pids.add(header(head, SPANS).pid)
    return pids


# --- while they grow -----------------------------------------------------------------------


def _head(file: BinaryIO) -> MapHeader | None:
    """None while the map is being created: its header is written last."""
    with suppress(ValueError):
        return header(file.read(HEADER_BYTES), SPANS)
    return None


class _Map(Struct):
    """One worker's map: `first` is the first record that has not ended."""

    pid: int
    first: int = 0
    open: int = 0
    ended: int = 0


class Live:
    """Counts the requests in the app, for a live display; each look reads only what is new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[Path, _Map] = {}
        self._before: int | None = None  # requests of the warm-up

    def look(self) -> tuple[dict[int, int], int]:
        """(requests in the app now, by worker pid; requests served since the first look)."""
        for path in sorted(self._directory.glob(PATTERN)):
            self._read(path)
        total = sum(worker.ended for worker in self._maps.values())
        if self._before is None:
            self._before = total
        return {worker.pid: worker.open for worker in self._maps.values()}, total - self._before

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            head = _head(file)
            if head is None:
                return
            worker = self._maps.setdefault(path, _Map(head.pid))
            open_count = ended_later = 0  # open records; ended ones after the first open one
            number, leading = worker.first, True
            file.seek(HEADER_BYTES + number * RECORD.size)
            while begun := _begun(file.read(READ_RECORDS * RECORD.size)):
                for ended in begun:
                    leading = leading and ended
                    worker.first += leading
                    open_count += not ended
                    ended_later += ended and not leading
                if len(begun) < READ_RECORDS:
                    break
            worker.open, worker.ended = open_count, worker.first + ended_later


class _Followed(Struct):
    """One worker's map: how many records have begun, and which of them are open."""

    pid: int
    begun: int = 0
    open: set[int] = set()


class Following:
    """Spans that began or ended since the last look, in no order. One that began has no end, and is
    returned again once it has."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[Path, _Followed] = {}
        self.full = False  # whether a worker has run out of records

    def look(self) -> list[Span]:
        changed: list[Span] = []
        for path in self._directory.glob(PATTERN):
            with path.open("rb") as file:
                head = _head(file)
                if head is None:
                    continue
                self.full = self.full or head.full
                worker = self._maps.setdefault(path, _Followed(head.pid))
                first = min(worker.open, default=worker.begun)
                file.seek(HEADER_BYTES + first * RECORD.size)
                changed += self._read(file, worker, first)
        return changed

    def _read(self, file: BinaryIO, worker: _Followed, number: int) -> Iterator[Span]:
        """From record `number` up to the first that has not begun."""
        while data := file.read(READ_RECORDS * RECORD.size):
            rows = RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size])
            for start, end, accepted, request_id in rows:
                if not start:
                    return
                is_new = number >= worker.begun
                if is_new or (end and number in worker.open):
                    yield Span(worker.pid, start, end or None, accepted or None, _name(request_id))
                if is_new:
                    worker.begun = number + 1
                    worker.open.update(() if end else (number,))
                elif end:
                    worker.open.discard(number)
                number += 1


def _begun(data: bytes) -> list[bool]:
    """For each record that has begun, in order: whether it has ended."""
    rows = RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size])
    return [bool(end) for _, end, *_ in takewhile(itemgetter(0), rows)]
