"""`fast`: the lab's own generator, with every request timed.

A load with a number of requests, a ramp, a mix or a moderate rate writes a row per request in
addition to its document; the two must agree. Other loads have only the document.

The Measurement:

- `timings`: every request sent, in order of start, with its number, which the server also receives.
  All figures include the first request, even if it is sent alone.
- `response`, `connect`, `first_byte`: from the request's start, before its connect(); with a rate,
  from its due time. Response and first byte are of complete responses with any status; connect
  and `connects_s` are of every established connection. They are exact with rows; without rows,
  they are taken from histograms and at most 0.4 % off.
- `origin_ns`: the zero of the timings on CLOCK_MONOTONIC, the clock of the spans.
- `duration_s`: from the first start to the end of the last request, or the deadline; `rps`:
  successes per second of that time.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from workerlab.errors import ParseError
from workerlab.load.generators.format import (
    COLUMNS,
    KEPT,
    MIX_COLUMNS,
    RESENT,
    GeneratorDocument,
)
from workerlab.load.programs import Program, measurement_of
from workerlab.load.tool import table_lines
from workerlab.model.evidence import Measurement, Output, Summary, Timing
from workerlab.numbers.samples import summarise

ROWS_FILE = "requests.csv"
# As in COLUMNS. A request number has at most 16 digits, because the probe stores 16 bytes
ROW = re.compile(
    r"(\d{1,18})" + r",(\d{0,18})" * 4 + r",([^,]*),(\d{1,16}),([0-2])(?:,(\d{1,9}))?", re.ASCII
)

Row = tuple[Timing, bool]  # a request, and whether it was resent on a new connection


@dataclass(frozen=True)
class FastTool(Program):
    SENDS_FIRST_ALONE = NUMBERS_REQUESTS = OPEN_MODEL = MIX = LINGERS = True
    IS_EXAMPLE = False
    OUTPUT_FILES = (ROWS_FILE,)
    REQUEST_CPU_S = 0.0006
    INSTALL_HINT = "It comes with workerlab."

    def compared_processes(self, cores: int) -> tuple[int, ...]:
        return 1, cores

    def parse(self, output: Output) -> Measurement:
        """Raises ParseError if document or rows are missing or incomplete, or if they disagree."""
        document = self.document_of(output)
        if not document.load.rows:
            return measurement_of(document)
        rows = _read_rows(output.files.get(ROWS_FILE), MIX_COLUMNS if document.routes else COLUMNS)
        _check_agreement(document, rows)
        return _with_exact_times(measurement_of(document), rows)


FAST = FastTool("fast", PROCESSES=True, FLOOR_RPS=3000.0)


def _with_exact_times(measurement: Measurement, rows: Sequence[Row]) -> Measurement:
    """The measurement with exact times from the rows."""
    timings = tuple(timing for timing, _ in rows)
    response = _summary(t.end_s for t in timings)
    exact = replace(measurement, timings=timings, response=response, percentiles_s={})
    if exact.asked_rps is not None:  # rows then begin at the due time, not with connect()
        return exact
    # The row of a resent request has only the time to connect of its last attempt
    connects = [timing.connect_s for timing, resent in rows if not (timing.reused or resent)]
    return replace(
        exact,
        connect=_summary(connects),
        first_byte=_summary(t.first_byte_s for t in timings if t.end_s is not None),
        connects_s=tuple(took_s for took_s in connects if took_s is not None),
    )


def _summary(values_s: Iterable[float | None]) -> Summary:
    return Summary(*summarise(value_s for value_s in values_s if value_s is not None))


def _read_rows(text: str | None, columns: str) -> list[Row]:
    """All requests, by start. Raises ParseError for a malformed line."""
    lines = table_lines(text, "fast", ROWS_FILE, columns)
    return sorted(map(_parse_row, lines), key=lambda row: row[0].start_s)


def _parse_row(line: str) -> Row:
    if (match := ROW.fullmatch(line)) is None:
        raise ParseError("a row in an unknown format", line)
    *times, cause, number, reuse_text, route_text = match.groups()
    start, *times = times
    *times_ns, status = (int(text) if text else None for text in times)
    reached_ns = [time_ns for time_ns in times_ns if time_ns is not None]
    in_order = times_ns[: len(reached_ns)] == sorted(reached_ns)
    if not in_order or (status is None) != (times_ns[2] is None):
        raise ParseError("a row whose times are out of order", line)
    connect_s, first_byte_s, end_s = (None if ns is None else ns / 1e9 for ns in times_ns)
    reused = int(reuse_text)
    if reused == KEPT and connect_s != 0:
        raise ParseError("a row on a kept-alive connection has a connect time", line)
    timing = Timing(
        start_s=int(start) / 1e9,
        connect_s=connect_s,
        first_byte_s=first_byte_s,
        end_s=end_s,
        status=status,
        cause=cause or None,
        request_id=number,
        reused=reused == KEPT,
        route=None if route_text is None else int(route_text),
    )
    return timing, reused == RESENT


def _check_agreement(document: GeneratorDocument, rows: Sequence[Row]) -> None:
    """Raises ParseError unless document and rows agree."""
    timings = [timing for timing, _ in rows]
    causes = Counter(timing.cause for timing in timings if timing.cause is not None)
    unexplained_rows = sum(timing.end_s is None and timing.cause is None for timing in timings)
    lone_s = next((t.end_s for t in timings[:1] if t.cause is None), None)
    lone_ns = None if document.lone_ns is None or lone_s is None else round(lone_s * 1e9)
    pairs = (
        ("sent", document.sent, len(timings)),
        ("complete", document.complete, sum(t.end_s is not None for t in timings)),
        ("errors", document.errors, dict(causes)),
        ("reconnects", document.reconnects, sum(resent for _, resent in rows)),
        ("rows without an end or a cause", 0, unexplained_rows),
        ("distinct request numbers", len(timings), len({timing.request_id for timing in timings})),
        ("lone_ns", document.lone_ns, lone_ns),
    )
    for figure, value, row_value in pairs:
        if value != row_value:
            raise ParseError(
                f"the document of fast and its rows disagree on {figure}: {value}, {row_value}"
            )
