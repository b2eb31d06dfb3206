"""How many requests each worker holds right now, read from the span maps while they grow.

For a picture on the screen, not for analysis: a request may begin or end between two maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.observe.spans import PATTERN
from harness.server.inside.probe import HEADER, HEADER_BYTES, RECORD

AT_ONCE = 256  # records read in one go


@dataclass
class _Map:
    """One worker's map: `first` is the first record that has not ended."""

    pid: int
    first: int = 0
    open: int = 0
    ended: int = 0


class Live:
    """Look again and again: only what is new is read, however long the load has run."""

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
            while begun := self._begun(file.read(AT_ONCE * RECORD.size)):
                for ended in begun:
                    leading = leading and ended
                    one.first += leading
                    opened += not ended
                    later += ended and not leading
                if len(begun) < AT_ONCE:
                    break
            one.open, one.ended = opened, one.first + later

    @staticmethod
    def _begun(data: bytes) -> list[bool]:
        """Of the records that have begun, in order: whether each has ended."""
        whole = data[: len(data) - len(data) % RECORD.size]
        found = []
        for start, end, *_ in RECORD.iter_unpack(whole):
            if not start:
                break
            found.append(bool(end))
        return found
