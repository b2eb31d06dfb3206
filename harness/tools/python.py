"""The lab's own closed-loop generator: nothing to install, and every request timed.

It is a program like the other tools (harness/generators/closed_loop.py), run by this interpreter
in isolated mode. It prints a document of counts and writes one row per request; each is checked
against the other, so that a document without its rows, or rows cut short, are never believed.

What the Measurement holds:

- `timings`: every request that was sent, in order of start; the first was sent alone, and is
  among them and in every figure.
- `response`, `connect`, `first_byte`: seconds since the request's start, before its connect().
  Response and first byte over complete responses, whatever their status; connect over every
  connection that came up. Percentiles as in `harness.quantiles`.
- `duration_s`: from the first start to the end of the last request, or the deadline; `rps`:
  successes in it, so the lone first request is part of it.
- `lone_s`: the response time of the first request, if it succeeded.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from harness.model import Command, Load, Measurement, Output, ParseError, Timing, UsageError
from harness.quantiles import summarise

NAME = "python"
PROGRAM = None
INTERPRETER = sys.executable
VERSION_ARGV = (INTERPRETER, "--version")
COUNTED = True
LONE_FIRST = True
ROWS = "requests.csv"
OUTPUT_FILES = (ROWS,)
INSTALL_HINT = "It comes with the lab: there is nothing to install."

GENERATOR = str(Path(__file__).parents[1] / "generators" / "closed_loop.py")
COLUMNS = "start_ns,connect_ns,first_byte_ns,end_ns,status,cause"
COUNTS = ("planned", "sent", "unsent", "complete", "failed", "duration_ns")

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
    timings = _rows(output.files.get(ROWS))
    _agree(counts, errors, timings)
    ended = [t.end_s for t in timings if t.end_s is not None]
    duration_s = counts["duration_ns"] / 1e9
    failed = counts["failed"]
    first = timings[0]
    notes = []
    if struck:
        notes.append(f"stopped at its deadline: {counts['unsent']} requests were never sent")
    return Measurement(
        requests=counts["complete"],
        failed=failed,
        errors=errors,
        duration_s=duration_s,
        rps=(counts["sent"] - failed) / duration_s if duration_s else None,
        response=summarise(ended),
        connect=summarise(t.connect_s for t in timings if t.connect_s is not None),
        first_byte=summarise(
            t.first_byte_s for t in timings if t.first_byte_s is not None and t.end_s is not None
        ),
        lone_s=first.end_s if first.cause is None else None,
        timings=timings,
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
    if document.get("format") != 1:
        raise ParseError("a document of another version of the python generator", line)
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


def _rows(text: str | None) -> tuple[Timing, ...]:
    """Every request, by start. ParseError at the first line that is not a whole row."""
    if not text:
        raise ParseError(f"the python generator left no {ROWS}")
    head, *lines = text.split("\n")
    if head != COLUMNS:
        raise ParseError(f"{ROWS} has other columns", head)
    if lines[-1:] != [""]:
        raise ParseError(f"{ROWS} is cut short", lines[-1] if lines else head)
    return tuple(sorted(map(_row, lines[:-1]), key=lambda timing: timing.start_s))


def _row(line: str) -> Timing:
    cells = line.split(",")
    if len(cells) != 6:
        raise ParseError("not a row of six cells", line)
    if not all(c.isascii() and (c.isdigit() or not c) and len(c) < 19 for c in cells[:5]):
        raise ParseError("a row with something else than numbers", line)
    start, *moments, status = (int(cell) if cell else None for cell in cells[:5])
    reached = [moment for moment in moments if moment is not None]
    in_order = reached == sorted(reached) and moments[: len(reached)] == reached
    if start is None or not in_order or (status is None) != (moments[2] is None):
        raise ParseError("a row whose moments are out of order", line)
    connect_s, first_byte_s, end_s = (None if ns is None else ns / 1e9 for ns in moments)
    return Timing(start / 1e9, connect_s, first_byte_s, end_s, status, cells[5] or None)


def _agree(counts: dict[str, int], errors: dict[str, int], timings: tuple[Timing, ...]) -> None:
    """ParseError unless document and rows say the same."""
    causes = Counter(timing.cause for timing in timings if timing.cause is not None)
    complete = sum(timing.end_s is not None for timing in timings)
    silent = sum(timing.end_s is None and timing.cause is None for timing in timings)
    pairs = (
        ("sent", counts["sent"], len(timings)),
        ("planned", counts["planned"], counts["sent"] + counts["unsent"]),
        ("complete", counts["complete"], complete),
        ("failed", counts["failed"], sum(errors.values())),
        ("errors", errors, dict(causes)),
        ("rows without an end or a cause", 0, silent),
    )
    for what, said, seen in pairs:
        if said != seen:
            raise ParseError(f"the python generator's {what} and its rows disagree: {said}, {seen}")
    if not timings:
        raise ParseError("the python generator sent nothing")
