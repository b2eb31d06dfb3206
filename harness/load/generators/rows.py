"""A line per request, for whoever wants to follow each of them."""

from __future__ import annotations

# start: since the origin; the others since start, empty where never reached; status: of a
# complete response; id: its number; reused: NEW, KEPT (connect is then 0) or AGAIN.
COLUMNS = "start_ns,connect_ns,first_byte_ns,end_ns,status,cause,id,reused"
NEW, KEPT, AGAIN = 0, 1, 2  # AGAIN: on a new connection, after a kept one was closed
AT_ONCE = 5_000  # lines that are written together


class Rows:
    """Writes the file. OSError where it cannot be written."""

    def __init__(self, path: str, origin_ns: int, *, heading: bool = True) -> None:
        """`origin_ns`: the zero of the starts, CLOCK_MONOTONIC."""
        self._origin_ns = origin_ns
        self._file = open(path, "w", encoding="ascii", newline="\n")  # noqa: SIM115
        self._lines = [COLUMNS + "\n"] if heading else []

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._flush()

    def add(
        self,
        start_ns: int,
        reached_ns: tuple[int | None, int | None, int | None],
        status: int | None,
        cause: str | None,
        number: int,
        reused: int,
    ) -> None:
        """`reached_ns`: when it was connected, had its first byte, and ended; absolute."""
        since = ["" if moment is None else moment - start_ns for moment in reached_ns]
        cells = (start_ns - self._origin_ns, *since, status or "", cause or "", number, reused)
        self._lines.append(",".join(map(str, cells)) + "\n")
        if len(self._lines) >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._file.writelines(self._lines)
        self._lines.clear()
