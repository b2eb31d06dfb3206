"""Reads the beats and stack samples in the maps that workers leave in a trial's directory;
`spans.py` reads spans and costs."""

from pathlib import Path

from workerlab import codec
from workerlab.model import Beat, Beats, CodeLine, Stacks, StackSample
from workerlab.server.inside.maps import BEATS, STACKS, header, records

BEAT_MAPS = f"{BEATS.kind}-*.map"


def parse_beats(data: bytes) -> tuple[int, bool, list[Beat]]:
    """(pid, whether the ring was full and may have lost some, beats by time) of one map's bytes.
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
    cut: list[int] = []
    for path in sorted(directory.glob(BEAT_MAPS)):
        pid, was_cut, worker_beats = parse_beats(path.read_bytes())
        beats += worker_beats
        cut += [pid] * was_cut
    return Beats(tuple(beats), tuple(cut))


STACK_MAPS = f"{STACKS.kind}-*.map"


def parse_stack_samples(data: bytes) -> tuple[int, tuple[StackSample, ...]]:
    """(pid, samples in order of time). Raises ValueError if it is not a whole map of samples."""
    head = header(data, STACKS)
    return head.pid, tuple(StackSample(*row) for row in sorted(records(data, STACKS)) if row[0])


def parse_lines(text: bytes) -> dict[int, CodeLine]:
    """By number; a last line cut off by the death of its worker is ignored. Raises ValueError."""
    lines: dict[int, CodeLine] = {}
    rows = text.split(b"\n")
    for row in rows[:-1]:
        line = codec.decode(row, CodeLine)
        lines[line.number] = line
    return lines


def read_stacks(directory: Path) -> Stacks:
    """Stacks of the sampled worker. Raises ValueError or OSError if its files cannot be read."""
    for path in directory.glob(STACK_MAPS):
        pid, samples = parse_stack_samples(path.read_bytes())
        lines = parse_lines((directory / f"stacks-{pid}.jsonl").read_bytes())
        return Stacks(pid, samples, lines)
    return Stacks()
