"""Reads the stack samples of an event loop: the map and the lines that `server/inside/stacks.py`
leaves in a trial's directory."""

from pathlib import Path

from workerlab import codec
from workerlab.model import CodeLine, Stacks, StackSample
from workerlab.observe.maps import header, whole
from workerlab.server.inside.stacks import MAGIC, RECORD

PATTERN = "stacks-*.map"


def parse_map(data: bytes) -> tuple[int, tuple[StackSample, ...]]:
    """(pid, samples in order of time). Raises ValueError if it is not a whole map of samples."""
    head = header(data, MAGIC, RECORD)
    rows = sorted(RECORD.iter_unpack(whole(data, RECORD)))
    return head.pid, tuple(StackSample(*row) for row in rows if row[0])


def parse_lines(text: bytes) -> dict[int, CodeLine]:
    """By number. The last one may be cut off, if its worker was killed. Raises ValueError."""
    lines: dict[int, CodeLine] = {}
    rows = text.split(b"\n")
    for row in rows[:-1]:
        line = codec.decode(row, CodeLine)
        lines[line.number] = line
    return lines


def read_stacks(directory: Path) -> Stacks:
    """Of the sampled worker. Raises ValueError or OSError if its files cannot be read."""
    for path in directory.glob(PATTERN):
        pid, samples = parse_map(path.read_bytes())
        lines = parse_lines((directory / f"stacks-{pid}.jsonl").read_bytes())
        return Stacks(pid, samples, lines)
    return Stacks()
