"""`fast`: the lab's own generator, with every request timed.

A load with a number of requests, a ramp, a mix or a moderate rate writes a row per request in
addition to its document; the two must agree. Other loads have only the document.

The Measurement:

- `timings`: every request sent, in order of start, with its number, which the server receives too.
  All figures include the first request, even if it is sent alone.
- `response`, `connect`, `first_byte`: from the request's start, before its connect(); with a rate
  from its due time. Response and first byte over complete responses, whatever their status;
  connect over every established connection, as `connects_s`. Exact with rows; without them from
  histograms, at most 0.4 % off.
- `origin_ns`: the zero of the timings on CLOCK_MONOTONIC, the clock of the spans.
- `duration_s`: from the first start to the end of the last request, or the deadline; `rps`:
  successes in it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from workerlab.load.generators.document import AGAIN, COLUMNS, KEPT, MIXED
from workerlab.load.programs import GeneratorDocument, Program, measurement
from workerlab.load.tool import table_lines
from workerlab.model import Measurement, Output, ParseError, Summary, Timing
from workerlab.numbers.samples import summarise

ROWS = "requests.csv"
# As in COLUMNS; the probe stores 16 bytes of a name
ROW = re.compile(
    r"(\d{1,18})" + r",(\d{0,18})" * 4 + r",([^,]*),(\d{1,16}),([0-2])(?:,(\d{1,9}))?", re.ASCII
)

Row = tuple[Timing, bool]  # a request, and whether it was repeated on a new connection


@dataclass(frozen=True)
class FastTool(Program):
    LONE_FIRST = NAMES_REQUESTS = OPEN_MODEL = MIX = LINGERS = True
    OUTPUT_FILES = (ROWS,)
    INSTALL_HINT = "It comes with the lab: there is nothing to install."

    def parse(self, output: Output) -> Measurement:
        """ParseError if the document or a row is missing or cut short, or if they disagree."""
        document = self.document_of(output)
        if not document.requested.rows:
            return measurement(document)
        rows = _rows(output.files.get(ROWS), MIXED if document.routes else COLUMNS)
        _agree(document, rows)
        return _exact(measurement(document), rows)


FAST = FastTool("fast", PROCESSES=True)


def _exact(summary: Measurement, rows: Sequence[Row]) -> Measurement:
    """The measurement with exact times from the rows."""
    timings = tuple(timing for timing, _ in rows)
    response = _summary(t.end_s for t in timings)
    exact = replace(summary, timings=timings, response=response, percentiles_s={})
    if exact.asked_rps is not None:  # rows begin when a request was due, not when it connected
        return exact
    # A repeated request's row has its last attempt only
    connects = [timing.connect_s for timing, again in rows if not (timing.reused or again)]
    return replace(
        exact,
        connect=_summary(connects),
        first_byte=_summary(t.first_byte_s for t in timings if t.end_s is not None),
        connects_s=tuple(took_s for took_s in connects if took_s is not None),
    )


def _summary(values_s: Iterable[float | None]) -> Summary:
    return Summary(*summarise(value_s for value_s in values_s if value_s is not None))


def _rows(text: str | None, columns: str) -> list[Row]:
    """Every request, by start. ParseError at the first malformed line."""
    lines = table_lines(text, "fast", ROWS, columns)
    return sorted(map(_row, lines), key=lambda row: row[0].start_s)


def _row(line: str) -> Row:
    if (match := ROW.fullmatch(line)) is None:
        raise ParseError("a row of an unknown form", line)
    *cells, cause, number, reused, route_text = match.groups()
    start, *cells = cells
    *moments, status = (int(cell) if cell else None for cell in cells)
    reached = [moment for moment in moments if moment is not None]
    in_order = moments[: len(reached)] == sorted(reached)
    if not in_order or (status is None) != (moments[2] is None):
        raise ParseError("a row whose moments are out of order", line)
    connect_s, first_byte_s, end_s = (None if ns is None else ns / 1e9 for ns in moments)
    connection = int(reused)
    if connection == KEPT and connect_s != 0:
        raise ParseError("a row on a kept connection has a connect time", line)
    timing = Timing(
        start_s=int(start) / 1e9,
        connect_s=connect_s,
        first_byte_s=first_byte_s,
        end_s=end_s,
        status=status,
        cause=cause or None,
        request_id=number,
        reused=connection == KEPT,
        route=None if route_text is None else int(route_text),
    )
    return timing, connection == AGAIN


def _agree(document: GeneratorDocument, rows: Sequence[Row]) -> None:
    """ParseError unless document and rows agree."""
    timings = [timing for timing, _ in rows]
    causes = Counter(timing.cause for timing in timings if timing.cause is not None)
    silent = sum(timing.end_s is None and timing.cause is None for timing in timings)
    lone_s = next((t.end_s for t in timings[:1] if t.cause is None), None)  # if it was a success
    lone_ns = None if document.lone_ns is None or lone_s is None else round(lone_s * 1e9)
    pairs = (
        ("sent", document.sent, len(timings)),
        ("complete", document.complete, sum(t.end_s is not None for t in timings)),
        ("errors", document.errors, dict(causes)),
        ("reconnects", document.reconnects, sum(again for _, again in rows)),
        ("rows without an end or a cause", 0, silent),
        ("different numbers", len(timings), len({timing.request_id for timing in timings})),
        ("lone_ns", document.lone_ns, lone_ns),
    )
    for figure, in_document, in_rows in pairs:
        if in_document != in_rows:
            raise ParseError(
                f"the document of fast and its rows disagree on {figure}: {in_document}, {in_rows}"
            )
