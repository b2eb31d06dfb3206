"""Reads the span maps the probe leaves in a trial's directory: at its end, and while they grow, to
say how many requests each worker holds right now."""

from itertools import chain, repeat, takewhile
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from workerlab.model import Span, SpanCost, Spans
from workerlab.observe.maps import AT_ONCE, header, whole
from workerlab.server.inside import costs
from workerlab.server.inside.probe import HEADER, HEADER_BYTES, MAGIC, RECORD

PATTERN = "spans-*.map"


def parse_map(data: bytes, costs_data: bytes | None = None) -> tuple[int, bool, list[Span]]:
    """(pid, full, spans in the order they began) of one map's bytes, and those of the map of their
    costs. Raises ValueError when they are not a whole span map."""
    head = header(data, MAGIC, RECORD)
    records = RECORD.iter_unpack(whole(data, RECORD))
    full = bool(head.mark & 0xFF)
    if costs_data is not None:
        known = chain(parse_costs(costs_data), repeat(None))
        return head.pid, full, [
            Span(head.pid, start, end or None, accepted or None, _name(request_id), cost)
            for (start, end, accepted, request_id), cost in zip(records, known, strict=False)
            if start
        ]  # fmt: skip
    spans = [
        Span(head.pid, start, end or None, accepted or None, _name(request_id))
        for start, end, accepted, request_id in records
        if start
    ]
    return head.pid, full, spans


def parse_costs(data: bytes) -> list[SpanCost | None]:
    """Those of a map's bytes, None where the clock did not stop. Raises ValueError when they are
    not a whole map of costs."""
    header(data, costs.MAGIC, costs.RECORD)
    return [
        SpanCost(cpu, queued, steps or None, held_up, route - 1 if route else None, *gil)
        if cpu
        else None
        for cpu, queued, steps, held_up, route, *gil in costs.RECORD.iter_unpack(
            whole(data, costs.RECORD)
        )
    ]


def _name(request_id: bytes) -> str | None:
    return request_id.rstrip(b"\0").decode("ascii", "replace") if request_id[0] else None


def read_spans(directory: Path) -> Spans:
    """All spans of a trial. Raises ValueError or OSError when a map cannot be read whole."""
    spans: list[Span] = []
    full: list[int] = []
    for path in sorted(directory.glob(PATTERN)):
        beside = path.with_name(path.name.replace("spans-", "costs-", 1))
        costs_data = beside.read_bytes() if beside.exists() else None
        pid, was_full, found = parse_map(path.read_bytes(), costs_data)
        spans += found
        full += [pid] * was_full
    return Spans(tuple(spans), tuple(full))


def served(directory: Path) -> set[int]:
    """Pids of the workers that have begun a request."""
    found = set()
    for path in directory.glob(PATTERN):
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES + RECORD.size)
        if len(head) == HEADER_BYTES + RECORD.size and any(head[HEADER_BYTES:]):
            found.add(HEADER.unpack_from(head)[1])
    return found


# --- while they grow -----------------------------------------------------------------------


class _Map(Struct):
    """One worker's map: `first` is the first record that has not ended."""

    pid: int
    first: int = 0
    open: int = 0
    ended: int = 0


class Live:
    """Look again and again, for a picture on the screen: only what is new is read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[Path, _Map] = {}
        self._before: int | None = None  # requests of the warm-up

    def look(self) -> tuple[dict[int, int], int]:
        """(requests in the app now, by worker pid; requests served since the first look)."""
        for path in sorted(self._directory.glob(PATTERN)):
            self._read(path)
        served = sum(one.ended for one in self._maps.values())
        if self._before is None:
            self._before = served
        return {one.pid: one.open for one in self._maps.values()}, served - self._before

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            if path not in self._maps:
                self._maps[path] = _Map(HEADER.unpack_from(file.read(HEADER_BYTES))[1])
            one = self._maps[path]
            opened = later = 0  # open records; ended ones behind the first open one
            number, leading = one.first, True
            file.seek(HEADER_BYTES + number * RECORD.size)
            while begun := _begun(file.read(AT_ONCE * RECORD.size)):
                for ended in begun:
                    leading = leading and ended
                    one.first += leading
                    opened += not ended
                    later += ended and not leading
                if len(begun) < AT_ONCE:
                    break
            one.open, one.ended = opened, one.first + later


class _Followed(Struct):
    """One worker's map: how many records have begun, and which of them had not ended."""

    pid: int
    begun: int = 0
    open: set[int] = set()


class Following:
    """What began or ended in the app since the last look, as spans: those that began have no end,
    and come again when they have. In no order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[Path, _Followed] = {}
        self.full = False  # a worker has no room for more

    def look(self) -> list[Span]:
        found: list[Span] = []
        for path in self._directory.glob(PATTERN):
            with path.open("rb") as file:
                head = file.read(HEADER_BYTES)
                if len(head) < HEADER_BYTES:  # being made
                    continue
                _, pid, _, _, full = HEADER.unpack_from(head)
                self.full = self.full or bool(full)
                one = self._maps.setdefault(path, _Followed(pid))
                first = min(one.open, default=one.begun)
                file.seek(HEADER_BYTES + first * RECORD.size)
                self._read(file, one, first, found)
        return found

    def _read(self, file: BinaryIO, one: _Followed, number: int, found: list[Span]) -> None:
        """Up to the first record that has not begun."""
        while data := file.read(AT_ONCE * RECORD.size):
            records = RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size])
            for start, end, accepted, request_id in records:
                if not start:
                    return
                new = number >= one.begun
                if new or (end and number in one.open):
                    found.append(
                        Span(one.pid, start, end or None, accepted or None, _name(request_id))
                    )
                if new:
                    one.begun = number + 1
                    one.open.update(() if end else (number,))
                elif end:
                    one.open.discard(number)
                number += 1


def _begun(data: bytes) -> list[bool]:
    """Of the records that have begun, in order: whether each has ended."""
    records = RECORD.iter_unpack(data[: len(data) - len(data) % RECORD.size])
    return [bool(end) for _, end, *_ in takewhile(itemgetter(0), records)]
