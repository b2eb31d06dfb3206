"""The lab's own closed-loop generator: nothing to install, and every request timed.

It is a program like the other tools (harness/generators/closed_loop.py), run by this interpreter
in isolated mode. It prints a document of counts and writes one row per request; each is checked
against the other, so that a document without its rows, or rows cut short, are never believed.

What the Measurement holds:

- `timings`: every request that was sent, in order of start; the first was sent alone, and is
  among them and in every figure.
- `response`, `connect`, `first_byte`: seconds since the request's start, before its connect().
  Response and first byte over complete responses, whatever their status; connect over every
  connection that came up, as `connects_s`, but those of requests that were sent again: their
  start is that of the first try. Percentiles as in `harness.quantiles`.
- `origin_ns`: the zero of the timings on CLOCK_MONOTONIC, the clock of the spans. Each request is
  named by its number, and says so to the server.
- `duration_s`: from the first start to the end of the last request, or the deadline; `rps`:
  successes in it, so the lone first request is part of it.
- `lone_s`: the response time of the first request, if it succeeded.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.model import Command, Load, Measurement, Output, ParseError, Timing, UsageError
from harness.quantiles import summarise

NAME = "python"
PROGRAM = None
INTERPRETER = sys.executable
VERSION_ARGV = (INTERPRETER, "--version")
COUNTED = True
LONE_FIRST = True
NAMES_REQUESTS = True
NO_KEEPALIVE: Mapping[str, str] = {}
ROWS = "requests.csv"
OUTPUT_FILES = (ROWS,)
INSTALL_HINT = "It comes with the lab: there is nothing to install."

GENERATOR = str(Path(__file__).parents[1] / "generators" / "closed_loop.py")
COLUMNS = "start_ns,connect_ns,first_byte_ns,end_ns,status,cause,id,reused"
FORMAT = 2
REUSED = NEW, KEPT, AGAIN = ("0", "1", "2")  # AGAIN: a new one, after a kept one was closed
COUNTS = (
    *("planned", "sent", "unsent", "complete", "failed", "reconnects"),
    *("origin_ns", "duration_ns"),
)

NAME_LENGTH = 16  # bytes of a name that the probe keeps

# The generator ends by itself before the harness gives up on it: what it saw is worth more than
# the knowledge that it was killed.
DEADLINE_SHARE = 0.95


def check(load: Load) -> None:
    """UsageError for fewer than one connection or request."""
    if load.concurrency < 1 or load.requests < 1:
        raise UsageError("The python generator needs at least one connection and one request.")


def command(load: Load, url: str, workdir: str) -> Command:
    """-I -S: no site, no environment variables, and half the start-up time."""
    words = [INTERPRETER, "-I", "-S", GENERATOR, "--url", url]
    words += ["--concurrency", str(load.concurrency), "--requests", str(load.requests)]
    words += ["--deadline", f"{load.deadline_s * DEADLINE_SHARE:.3f}"]
    words += ["--rows", f"{workdir}/{ROWS}"]
    if load.keepalive:
        words.append("--keepalive")
    if load.method != "GET":
        words += ["--method", load.method]
    for name, value in load.headers:
        words.append(f"--header={name}: {value}")
    if load.body_file is not None:
        words.append(f"--body-file={load.body_file}")
    if load.expect_status != 200:
        words += ["--expect-status", str(load.expect_status)]
    return Command(argv=tuple(words))


def parse(output: Output) -> Measurement:
    """ParseError where the document or a row is missing, cut short, or disagrees."""
    if output.exit_code != 0:
        last = output.stderr.strip().rpartition("\n")[2]
        raise ParseError(f"the python generator ended with exit code {output.exit_code}", last)
    counts, errors, struck = _document(output.stdout)
    rows = _rows(output.files.get(ROWS))
    timings = tuple(row.timing for row in rows)
    _agree(counts, errors, rows)
    ended = [t.end_s for t in timings if t.end_s is not None]
    duration_s = counts["duration_ns"] / 1e9
    failed = counts["failed"]
    first = timings[0]
    connects = tuple(row.connected_s for row in rows if row.connected_s is not None)
    notes = []
    if counts["reconnects"]:
        notes.append(
            f"{counts['reconnects']} kept connections were closed by the server as a request"
            " was sent on them: those requests were sent again on new ones"
        )
    if struck:
        notes.append(f"stopped at its deadline: {counts['unsent']} requests were never sent")
    return Measurement(
        requests=counts["complete"],
        failed=failed,
        errors=errors,
        duration_s=duration_s,
        rps=(counts["sent"] - failed) / duration_s if duration_s else None,
        response=summarise(ended),
        connect=summarise(connects),
        first_byte=summarise(
            t.first_byte_s for t in timings if t.first_byte_s is not None and t.end_s is not None
        ),
        lone_s=first.end_s if first.cause is None else None,
        timings=timings,
        origin_ns=counts["origin_ns"],
        connects_s=connects,
        notes=tuple(notes),
    )


def _document(stdout: str) -> tuple[dict[str, int], dict[str, int], bool]:
    """(counts, errors by cause, whether the deadline struck)."""
    line = stdout.strip()
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise ParseError("the python generator did not print its document", line) from None
    if not isinstance(document, dict) or document.get("generator") != "closed_loop":
        raise ParseError("not a document of the python generator", line)
    if document.get("format") != FORMAT:
        why = f"a document of another version of the python generator, not of format {FORMAT}"
        raise ParseError(why, line)
    counts = {name: _count(document.get(name), name, line) for name in COUNTS}
    causes = document.get("errors")
    struck = document.get("deadline_struck")
    if not isinstance(causes, dict) or not isinstance(struck, bool):
        raise ParseError("the python generator's document is incomplete", line)
    return counts, {cause: _count(n, cause, line) for cause, n in causes.items()}, struck


def _count(value: object, name: str, line: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ParseError(f"{name} is not a count", line)
    return value


@dataclass(frozen=True)
class _Row:
    """A request, and whether it was sent again."""

    timing: Timing
    again: bool

    @property
    def connected_s(self) -> float | None:
        """How long its connection took to come up, if it is known."""
        return None if self.timing.reused or self.again else self.timing.connect_s


def _rows(text: str | None) -> tuple[_Row, ...]:
    """Every request, by start. ParseError at the first line that is not a whole row."""
    if not text:
        raise ParseError(f"the python generator left no {ROWS}")
    head, *lines = text.split("\n")
    if head != COLUMNS:
        raise ParseError(f"{ROWS} has other columns", head)
    if lines[-1:] != [""]:
        raise ParseError(f"{ROWS} is cut short", lines[-1] if lines else head)
    return tuple(sorted(map(_row, lines[:-1]), key=lambda row: row.timing.start_s))


def _row(line: str) -> _Row:
    cells = line.split(",")
    if len(cells) != 8:
        raise ParseError("not a row of eight cells", line)
    cause, number, reused = cells[5:]
    numbers = [*cells[:5], number]
    if not all(c.isascii() and (c.isdigit() or not c) and len(c) < 19 for c in numbers):
        raise ParseError("a row with something else than numbers", line)
    if not 0 < len(number) <= NAME_LENGTH or reused not in REUSED:
        raise ParseError("a row without its number, or how it was connected", line)
    start, *moments, status = (int(cell) if cell else None for cell in cells[:5])
    reached = [moment for moment in moments if moment is not None]
    in_order = reached == sorted(reached) and moments[: len(reached)] == reached
    if start is None or not in_order or (status is None) != (moments[2] is None):
        raise ParseError("a row whose moments are out of order", line)
    connect_s, first_byte_s, end_s = (None if ns is None else ns / 1e9 for ns in moments)
    kept = reused == KEPT
    if kept and connect_s != 0:
        raise ParseError("a row that connected, and did not", line)
    timing = Timing(
        start / 1e9, connect_s, first_byte_s, end_s, status, cause or None, number, kept
    )
    return _Row(timing, again=reused == AGAIN)


def _agree(counts: dict[str, int], errors: dict[str, int], rows: tuple[_Row, ...]) -> None:
    """ParseError unless document and rows say the same."""
    timings = [row.timing for row in rows]
    causes = Counter(timing.cause for timing in timings if timing.cause is not None)
    complete = sum(timing.end_s is not None for timing in timings)
    silent = sum(timing.end_s is None and timing.cause is None for timing in timings)
    pairs = (
        ("sent", counts["sent"], len(timings)),
        ("planned", counts["planned"], counts["sent"] + counts["unsent"]),
        ("complete", counts["complete"], complete),
        ("failed", counts["failed"], sum(errors.values())),
        ("errors", errors, dict(causes)),
        ("reconnects", counts["reconnects"], sum(row.again for row in rows)),
        ("rows without an end or a cause", 0, silent),
        ("different numbers", len(timings), len({timing.request_id for timing in timings})),
    )
    for what, said, seen in pairs:
        if said != seen:
            raise ParseError(f"the python generator's {what} and its rows disagree: {said}, {seen}")
    if not timings:
        raise ParseError("the python generator sent nothing")
