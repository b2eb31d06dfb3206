"""Reads the maps that workers write to a trial's directory: spans and their costs, beats, stack
samples. Also follows the spans while their maps grow, to count the requests in each worker."""

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from workerlab import codec
from workerlab.model.evidence import (
    Beat,
    Beats,
    CodeLine,
    Span,
    SpanCost,
    Spans,
    Stacks,
    StackSample,
)
from workerlab.server.inside.maps import (
    BEATS,
    COSTS,
    HEADER_BYTES,
    READ_RECORDS,
    SPANS,
    STACKS,
    header,
    records,
)

PATTERN = f"{SPANS.kind}-*.map"
RECORD = SPANS.record


def parse_map(data: bytes, costs_data: bytes | None = None) -> tuple[int, bool, list[Span]]:
    """(pid, full, spans in order of start) from one map's bytes. `costs_data`: the bytes of its map
    of costs. Raises ValueError if they are not whole maps."""
    pid, _, full = header(data, SPANS)
    costs = [] if costs_data is None else parse_costs(costs_data)
    spans = [
        Span(pid, start, end or None, accepted or None, _id(request_id), cost)
        for (start, end, accepted, request_id), cost in zip(
            records(data, SPANS), chain(costs, repeat(None)), strict=False
        )
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


def _id(request_id: bytes) -> str | None:
    return request_id.rstrip(b"\0").decode("ascii", "replace") if request_id[0] else None


def read_spans(directory: Path) -> Spans:
    """All spans of a trial. Raises ValueError or OSError if a map cannot be read."""
    spans: list[Span] = []
    full: list[int] = []
    for path in sorted(directory.glob(PATTERN)):
        costs_path = path.with_name(path.name.replace(SPANS.kind, COSTS.kind, 1))
        costs_data = costs_path.read_bytes() if costs_path.exists() else None
        pid, is_full, worker_spans = parse_map(path.read_bytes(), costs_data)
        spans += worker_spans
        full += [pid] * is_full
    return Spans(tuple(spans), tuple(full))


def serving_pids(directory: Path) -> set[int]:
    """Pids of the workers that have begun a request."""
    pids = set()
    for path in directory.glob(PATTERN):
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES + RECORD.size)
        if len(head) == HEADER_BYTES + RECORD.size and any(head[HEADER_BYTES:]):
            pids.add(header(head, SPANS).pid)
    return pids


# --- beats and stacks -------------------------------------------------------------------------


def parse_beats(data: bytes) -> tuple[int, bool, list[Beat]]:
    """(pid, whether the ring is full and may have lost beats, beats by time) from one map's bytes.
    Raises ValueError if they are not a whole map of beats."""
    head = header(data, BEATS)
    beats = [
        Beat(head.pid, at, *(max(0, part) for part in parts))  # a timer may fire before its time
        for at, *parts in sorted(records(data, BEATS))
        if at
    ]
    return head.pid, len(beats) >= head.capacity, beats


def read_beats(directory: Path) -> Beats:
    """The beats of all workers of a trial. Raises ValueError or OSError if a map cannot be read."""
    beats: list[Beat] = []
    incomplete: list[int] = []
    for path in sorted(directory.glob(f"{BEATS.kind}-*.map")):
        pid, is_incomplete, worker_beats = parse_beats(path.read_bytes())
        beats += worker_beats
        incomplete += [pid] * is_incomplete
    return Beats(tuple(beats), tuple(incomplete))


def parse_stack_samples(data: bytes) -> tuple[int, tuple[StackSample, ...]]:
    """(pid, samples in order of time). Raises ValueError if it is not a whole map of samples."""
    head = header(data, STACKS)
    return head.pid, tuple(StackSample(*row) for row in sorted(records(data, STACKS)) if row[0])


def parse_lines(text: bytes) -> dict[int, CodeLine]:
    """The lines by number, except a last one that its worker's death left incomplete. Raises
    ValueError."""
    lines: dict[int, CodeLine] = {}
    rows = text.split(b"\n")
    for row in rows[:-1]:
        line = codec.decode(row, CodeLine)
        lines[line.number] = line
    return lines


def read_stacks(directory: Path) -> Stacks:
    """Stack samples of one worker. Raises ValueError or OSError if its files cannot be read."""
    for path in directory.glob(f"{STACKS.kind}-*.map"):
        pid, samples = parse_stack_samples(path.read_bytes())
        lines = parse_lines((directory / f"stacks-{pid}.jsonl").read_bytes())
        return Stacks(pid, samples, lines)
    return Stacks()


# --- while maps grow -----------------------------------------------------------------------


class _MapProgress(Struct):
    """One worker's map: how many records have begun, and which of them are open."""

    pid: int
    begun: int = 0
    open: set[int] = set()


class SpanFollower:
    """Spans that began or ended since the last poll, unordered. A span in progress has no end;
    it is returned again once it has one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.workers: dict[Path, _MapProgress] = {}  # by the path of the map
        self.full = False  # whether a worker has run out of records

    def poll(self) -> list[Span]:
        changed: list[Span] = []
        for path in sorted(self._directory.glob(PATTERN)):
            with path.open("rb") as file:
                try:
                    head = header(file.read(HEADER_BYTES), SPANS)
                except ValueError:  # the map is being created: its header is written last
                    continue
                self.full = self.full or head.full
                worker = self.workers.setdefault(path, _MapProgress(head.pid))
                first = min(worker.open, default=worker.begun)
                file.seek(HEADER_BYTES + first * RECORD.size)
                changed += self._read(file, worker, first)
        return changed

    def _read(self, file: BinaryIO, worker: _MapProgress, number: int) -> Iterator[Span]:
        """The spans from record `number` up to the first that has not begun, if they changed."""
        while data := file.read(READ_RECORDS * RECORD.size):
            rows = RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size])
            for start, end, accepted, request_id in rows:
                if not start:
                    return
                is_new = number >= worker.begun
                if is_new or (end and number in worker.open):
                    yield Span(worker.pid, start, end or None, accepted or None, _id(request_id))
                if is_new:
                    worker.begun = number + 1
                    worker.open.update(() if end else (number,))
                elif end:
                    worker.open.discard(number)
                number += 1


class LiveCounts:
    """Counts the requests in the app, for a live display; each poll reads only new records."""

    def __init__(self, directory: Path) -> None:
        self._spans = SpanFollower(directory)
        self._warmup_requests: int | None = None  # served before the first poll

    def poll(self) -> tuple[dict[int, int], int]:
        """(requests in the app now, by worker pid; requests served since the first poll)."""
        self._spans.poll()
        workers = self._spans.workers.values()
        total = sum(worker.begun - len(worker.open) for worker in workers)
        self._warmup_requests = total if self._warmup_requests is None else self._warmup_requests
        return {worker.pid: len(worker.open) for worker in workers}, total - self._warmup_requests
