"""`fast`: the lab's own generator, with every request timed.

A load that counts its requests leaves a row for each of them beside its document, and so does one
with a ramp, of a mix or at a moderate rate; each is checked against the other. Other loads that
run for a time have the document only.

What the Measurement holds:

- `timings`: every request that was sent, in order of start; the first was sent alone (but with a
  ramp), and is among them and in every figure. Each is named by its number, also to the server.
- `response`, `connect`, `first_byte`: since the request's start, before its connect(); with a rate
  since its intended start. Response and first byte over complete responses, whatever their status;
  connect over every connection that came up, as `connects_s`. Exact with rows; without them from
  histograms, at most 0.4 % beside that.
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
from workerlab.load.programs import Document, Program, measurement
from workerlab.load.tool import table_lines
from workerlab.model import Measurement, Output, ParseError, Summary, Timing
from workerlab.numbers.quantiles import summarise

ROWS = "requests.csv"
# As in COLUMNS; of a name the probe keeps 16 bytes
ROW = re.compile(
    r"(\d{1,18})" + r",(\d{0,18})" * 4 + r",([^,]*),(\d{1,16}),([0-2])(?:,(\d{1,9}))?", re.ASCII
)

Row = tuple[Timing, bool]  # a request, and whether it was sent again


@dataclass(frozen=True)
class Fast(Program):
    LONE_FIRST = NAMES_REQUESTS = OPEN_MODEL = MIX = LINGERS = True
    OUTPUT_FILES = (ROWS,)
    INSTALL_HINT = "It comes with the lab: there is nothing to install."

    def parse(self, output: Output) -> Measurement:
        """ParseError where the document or a row is missing, cut short, or disagrees."""
        said = self.document_of(output)
        found = measurement(said)
        if not said.asked.rows:
            return found
        rows = _rows(output.files.get(ROWS), MIXED if said.routes else COLUMNS)
        _agree(said, rows)
        return _exact(found, rows)


FAST = Fast("fast", PROCESSES=True)


def _exact(found: Measurement, rows: Sequence[Row]) -> Measurement:
    """With what the rows know of each request."""
    timings = tuple(timing for timing, _ in rows)
    response = _summary(t.end_s for t in timings)
    found = replace(found, timings=timings, response=response, percentiles_s={})
    if found.asked_rps is not None:  # rows begin when a request was due, not when it connected
        return found
    # Of one that was sent again, only the last try is known: not how long it took
    connects = [timing.connect_s for timing, again in rows if not (timing.reused or again)]
    return replace(
        found,
        connect=_summary(connects),
        first_byte=_summary(t.first_byte_s for t in timings if t.end_s is not None),
        connects_s=tuple(took_s for took_s in connects if took_s is not None),
    )


def _summary(values_s: Iterable[float | None]) -> Summary:
    return Summary(*summarise(value_s for value_s in values_s if value_s is not None))


def _rows(text: str | None, columns: str) -> list[Row]:
    """Every request, by start. ParseError at the first line that is not a whole row."""
    lines = table_lines(text, "fast", ROWS, columns)
    return sorted(map(_row, lines), key=lambda row: row[0].start_s)


def _row(line: str) -> Row:
    if (match := ROW.fullmatch(line)) is None:
        raise ParseError("a row of an unknown form", line)
    *cells, cause, number, reused, place = match.groups()
    start, *cells = cells
    *moments, status = (int(cell) if cell else None for cell in cells)
    reached = [moment for moment in moments if moment is not None]
    in_order = moments[: len(reached)] == sorted(reached)
    if not in_order or (status is None) != (moments[2] is None):
        raise ParseError("a row whose moments are out of order", line)
    connect_s, first_byte_s, end_s = (None if ns is None else ns / 1e9 for ns in moments)
    how = int(reused)
    if how == KEPT and connect_s != 0:
        raise ParseError("a row that connected, and did not", line)
    moments_s = (int(start) / 1e9, connect_s, first_byte_s, end_s)
    route = None if place is None else int(place)
    return Timing(*moments_s, status, cause or None, number, how == KEPT, route), how == AGAIN


def _agree(said: Document, rows: Sequence[Row]) -> None:
    """ParseError unless document and rows say the same."""
    timings = [timing for timing, _ in rows]
    causes = Counter(timing.cause for timing in timings if timing.cause is not None)
    silent = sum(timing.end_s is None and timing.cause is None for timing in timings)
    lone_s = next((t.end_s for t in timings[:1] if t.cause is None), None)  # if it was a success
    lone_ns = None if said.lone_ns is None or lone_s is None else round(lone_s * 1e9)
    pairs = (
        ("sent", said.sent, len(timings)),
        ("complete", said.complete, sum(t.end_s is not None for t in timings)),
        ("errors", said.errors, dict(causes)),
        ("reconnects", said.reconnects, sum(again for _, again in rows)),
        ("rows without an end or a cause", 0, silent),
        ("different numbers", len(timings), len({timing.request_id for timing in timings})),
        ("lone_ns", said.lone_ns, lone_ns),
    )
    for what, one, other in pairs:
        if one != other:
            raise ParseError(
                f"the document of fast and its rows disagree on {what}: {one}, {other}"
            )
