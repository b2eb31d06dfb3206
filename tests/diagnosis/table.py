"""Precision and recall per finding, and every miss with the sentence that was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import ALLOWED, EXCUSED, FALSE, MISSING, RIGHT, Statement
from tests.diagnosis.store import Ran

INTRODUCTION = """\
# How often the diagnosis is right

workerlab is tested against servers of known behaviour: apps that wait, hold locks, block event
loops or crash by design. For each load, a scenario (`tests/diagnosis/scenarios.py`) lists the
correct verdicts and the required and optional findings; any other finding in the table is false.
`CoresStolen` is always optional; with noise, so are `CoresTaken` and, if the app computes,
`BusyMachine`.

`tox run -e diagnosis` runs each scenario repeatedly through the command line, on a quiet machine
and with noise (a CPU-bound program that runs at random times), and writes this page to
`.tox/diagnosis-runs/diagnosis.md`. A subset runs with the other tests."""
LEGEND = """\
- **reported**: number of reports; **false**: number of false reports.
- **required**: number of cells that require it; **found**: number of these that report it.
  `A or B`: either is enough; a reported finding counts in its own row.
- **quiet**: a run without noise in which other programs used less than 0.25 cores and the machine
  did not pause. All other runs count as **noise**, including most scenarios that only sleep, which
  run three at a time.
- **inconclusive**: required, but the cell is rightly inconclusive: the machine paused, or, with
  noise, an app that does more than sleep waited for a core for 5 % or more of its response time.
  The recall counts these as found.

Checks:

- **premise**: kept-alive connections are distributed as the scenario specifies.
- **law**: over the whole load, requests in flight = throughput x mean response time (Little 1961).
- **contradiction**: no level above a saturated one is below capacity; no verdict contradicts the
  knee.
- **comparison**: identical servers show no difference.
- **exit**: the exit code is correct and no trial is missing; listed only if one fails."""
MISSES = """\
## Misses

A missing finding is followed by the cell's verdict and diagnosis."""
SAID = (RIGHT, ALLOWED, FALSE)
HEAD = ("", "reported", "false", "required", "found, quiet", "found, noise", "inconclusive")


def summary(statements: Sequence[Statement]) -> str:
    """In one paragraph."""
    reported = [statement for statement in statements if statement.outcome in SAID]
    judged = [statement for statement in reported if statement.kind in ("verdict", "finding")]
    false = [statement for statement in judged if statement.outcome == FALSE]
    others = Counter(
        statement.kind
        for statement in statements
        if statement.outcome == FALSE and statement not in false
    )
    parts = [f"{len(judged)} verdicts and findings, {len(false)} false"]
    recall = []
    for noisy, label in ((False, "quiet"), (True, "noise")):
        due = [
            statement
            for statement in _due(statements)
            if statement.noisy == noisy and statement.kind == "finding"
        ]
        reported_due = [statement for statement in due if statement.outcome != MISSING]
        recall.append(f"{label} {_share(len(reported_due), len(due))}")
    kinds = ("premise", "law", "contradiction", "comparison", "exit")
    checks = [
        f"{kind} {others[kind]} of {checked}"
        for kind in kinds
        if (checked := _checked(statements, kind))
    ]
    parts.append(f"recall of findings: {', '.join(recall)}")
    if checks:
        parts.append(f"failed checks: {', '.join(checks)}")
    return "; ".join(parts) + "."


def _checked(statements: Iterable[Statement], kind: str) -> int:
    return sum(statement.kind == kind for statement in statements)


def _due(statements: Iterable[Statement]) -> Iterator[Statement]:
    """What had to be said. A wrong verdict is both: something false, and something missing."""
    return (statement for statement in statements if statement.outcome in (MISSING, EXCUSED, RIGHT))


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none due"


def rows(statements: Sequence[Statement]) -> Iterator[tuple[str, ...]]:
    judged = [statement for statement in statements if statement.kind in ("verdict", "finding")]
    for kind, code in sorted(
        {(statement.kind, statement.code) for statement in judged}, reverse=True
    ):
        own = [
            statement for statement in judged if (statement.kind, statement.code) == (kind, code)
        ]
        count = Counter(statement.outcome for statement in own)
        by_noise = []
        for noisy in (False, True):
            due = [statement for statement in _due(own) if statement.noisy == noisy]
            right = sum(statement.outcome == RIGHT for statement in due)
            by_noise.append(f"{right}/{len(due)}" if due else "")
        reported = count[RIGHT] + count[FALSE] + count[ALLOWED]
        cells = (reported, count[FALSE], sum(1 for _ in _due(own)))
        yield (code, *map(str, cells), *by_noise, str(count[EXCUSED] or ""))


def misses(statements: Iterable[Statement]) -> list[Statement]:
    """What was false or missing, each once; of a wrong verdict what was said."""
    missed = []
    for statement in statements:
        if statement.wrong and not (statement.kind == "verdict" and statement.outcome == MISSING):
            missed.append(statement)
    return missed


def line_of(statement: Statement) -> str:
    noise = "noise" if statement.noisy else "quiet"
    reported = f"{statement.outcome} {statement.kind} {statement.code}"
    return f"{statement.scenario} ({statement.where}; {noise}): {reported}"


def as_text(statements: Sequence[Statement]) -> str:
    table = [HEAD, *rows(statements)]
    widths = [max(len(row[place]) for row in table) for place in range(len(HEAD))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    missed = misses(statements)
    listed = [f"{line_of(statement)}\n    {statement.sentence}" for statement in missed]
    return "\n".join([*lines, "", summary(statements), "", *listed]) + "\n"


def as_markdown(statements: Sequence[Statement], ran: Sequence[Ran]) -> str:
    """The page in docs/. `ran`: the runs that were judged."""
    noisy = sum(statement.noise for statement in ran)
    runs = f"{len(ran)} runs, {noisy} with noise:"
    head = ("finding or verdict", *HEAD[1:])
    by_code = _markdown([head, *rows(statements)])
    heading = ("scenario", "known behaviour", "reported", "false or missing")
    kinds = _markdown([heading, *by_scenario(statements)])
    missed = misses(statements)
    listed = [f"- {line_of(statement)}: {statement.sentence}" for statement in missed] or ["None."]
    total = f"{runs} {summary(statements)}"
    page = (INTRODUCTION, total, LEGEND, by_code, "## Scenarios", kinds, MISSES)
    return "\n\n".join(page) + "\n\n" + "\n".join(listed) + "\n"


def by_scenario(statements: Sequence[Statement]) -> Iterator[tuple[str, ...]]:
    """Those that were run."""
    for scenario in SCENARIOS.values():
        own = [statement for statement in statements if statement.scenario == scenario.name]
        reported = sum(
            statement.kind in ("verdict", "finding") and statement.outcome in SAID
            for statement in own
        )
        if own:
            yield scenario.name, scenario.why, str(reported), str(len(misses(own)) or "")


def _markdown(table: Sequence[tuple[str, ...]]) -> str:
    """The first row is its head; columns of numbers stand right."""
    ruler = tuple(
        "--:" if all(cell[:1].isdigit() or not cell for cell in column[1:]) else "---"
        for column in zip(*table, strict=True)
    )
    lines = [table[0], ruler, *table[1:]]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', ' or ') for cell in row)} |" for row in lines
    )
