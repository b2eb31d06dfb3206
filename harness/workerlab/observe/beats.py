"""Reads the beats of the workers' event loops, from the maps that `server/inside/heartbeat.py`
leaves in a trial's directory."""

from pathlib import Path

from workerlab.model import Beat, Beats
from workerlab.observe.maps import header, whole
from workerlab.server.inside.heartbeat import MAGIC, RECORD

PATTERN = "beats-*.map"


def parse_map(data: bytes) -> tuple[int, bool, list[Beat]]:
    """(pid, whether the ring was full and may have lost some, beats by time) of one map's bytes.
    Raises ValueError if they are not a whole map of beats."""
    head = header(data, MAGIC, RECORD)
    beats = [
        Beat(head.pid, at, *(max(0, part) for part in parts))  # a timer may fire before its time
        for at, *parts in sorted(RECORD.iter_unpack(whole(data, RECORD)))
        if at
    ]
    return head.pid, len(beats) >= head.capacity, beats


def read_beats(directory: Path) -> Beats:
    """The beats of all workers of a trial. Raises ValueError or OSError if a map cannot be read."""
    beats: list[Beat] = []
    cut: list[int] = []
    for path in sorted(directory.glob(PATTERN)):
        pid, was_cut, worker_beats = parse_map(path.read_bytes())
        beats += worker_beats
        cut += [pid] * was_cut
    return Beats(tuple(beats), tuple(cut))
