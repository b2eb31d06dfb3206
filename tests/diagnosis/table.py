"""Precision and recall per finding, and all misses with the reported sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import ALLOWED, EXCUSED, FALSE, MISSING, RIGHT, Statement
from tests.diagnosis.store import RunRecord

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
REPORTED = (RIGHT, ALLOWED, FALSE)
HEAD = ("", "reported", "false", "required", "found, quiet", "found, noise", "inconclusive")


def summary(statements: Sequence[Statement]) -> str:
    """One paragraph."""
    reported = [statement for statement in statements if statement.outcome in REPORTED]
    judged = [statement for statement in reported if statement.kind in ("verdict", "finding")]
    false = [statement for statement in judged if statement.outcome == FALSE]
    others = Counter(
        statement.kind
        for statement in statements
        if statement.outcome == FALSE and statement not in false
    )
    parts = [f"{len(judged)} verdicts and findings, {len(false)} false"]
    recall = []
    required = [statement for statement in _required(statements) if statement.kind == "finding"]
    for noisy, label in ((False, "quiet"), (True, "noise")):
        outcomes = [statement.outcome for statement in required if statement.noisy == noisy]
        found = len(outcomes) - outcomes.count(MISSING)
        recall.append(f"{label} {_share(found, len(outcomes))}")
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


def _required(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Those that had to be reported. A wrong verdict is a false and a missing statement."""
    return (statement for statement in statements if statement.outcome in (MISSING, EXCUSED, RIGHT))


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none due"


def rows(statements: Sequence[Statement]) -> Iterator[tuple[str, ...]]:
    by_code: dict[tuple[str, str], list[Statement]] = defaultdict(list)
    for statement in statements:
        if statement.kind in ("verdict", "finding"):
            by_code[statement.kind, statement.code].append(statement)
    for (_, code), group in sorted(by_code.items(), key=lambda item: item[0], reverse=True):
        count = Counter(statement.outcome for statement in group)
        required, by_noise = list(_required(group)), []
        for noisy in (False, True):
            outcomes = [statement.outcome for statement in required if statement.noisy == noisy]
            by_noise.append(f"{outcomes.count(RIGHT)}/{len(outcomes)}" if outcomes else "")
        reported = count[RIGHT] + count[FALSE] + count[ALLOWED]
        cells = (reported, count[FALSE], len(required))
        yield (code, *map(str, cells), *by_noise, str(count[EXCUSED] or ""))


def misses(statements: Iterable[Statement]) -> list[Statement]:
    """False and missing statements; of a wrong verdict only the false one."""
    wrong = (statement for statement in statements if statement.wrong)
    return [entry for entry in wrong if (entry.kind, entry.outcome) != ("verdict", MISSING)]


def line_of(statement: Statement) -> str:
    noise = "noise" if statement.noisy else "quiet"
    reported = f"{statement.outcome} {statement.kind} {statement.code}"
    return f"{statement.scenario} ({statement.where}; {noise}): {reported}"


def as_text(statements: Sequence[Statement]) -> str:
    table = [HEAD, *rows(statements)]
    first_width, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    lines = []
    for first, *others in table:
        cells = (cell.rjust(width) for cell, width in zip(others, widths, strict=True))
        lines.append("  ".join([first.ljust(first_width), *cells]).rstrip())
    missed = misses(statements)
    listed = [f"{line_of(statement)}\n    {statement.sentence}" for statement in missed]
    return "\n".join([*lines, "", summary(statements), "", *listed]) + "\n"


def as_markdown(statements: Sequence[Statement], records: Sequence[RunRecord]) -> str:
    """The page in docs/. `records`: the judged runs."""
    noisy = sum(record.noise for record in records)
    runs = f"{len(records)} runs, {noisy} with noise:"
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
    """The scenarios that were run."""
    for scenario in SCENARIOS.values():
        group = [statement for statement in statements if statement.scenario == scenario.name]
        reported = sum(
            statement.kind in ("verdict", "finding") and statement.outcome in REPORTED
            for statement in group
        )
        if group:
            yield scenario.name, scenario.why, str(reported), str(len(misses(group)) or "")


def _markdown(table: Sequence[tuple[str, ...]]) -> str:
    """The first row is the head; columns of numbers are right-aligned."""
    ruler = tuple(
        "--:" if all(cell[:1].isdigit() or not cell for cell in column[1:]) else "---"
        for column in zip(*table, strict=True)
    )
    rows = ([cell.replace("|", " or ") for cell in row] for row in (table[0], ruler, *table[1:]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
