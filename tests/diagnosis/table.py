"""Precision and recall per finding, and every miss with the sentence that was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import ALLOWED, EXCUSED, FALSE, MISSING, RIGHT, Statement
from tests.diagnosis.store import Ran

INTRODUCTION = """\
# How often the diagnosis is right

The lab is tested against servers with known behaviour: apps that wait, hold locks, block event
loops or die by design. For each load, a scenario (`tests/diagnosis/scenarios.py`) lists the correct
verdicts and the required and optional findings; any other in the table is false. Optional:
`CoresStolen`; with noise also `CoresTaken`, and `BusyMachine` if the app computes.

`tox run -e diagnosis` runs each scenario repeatedly through the command line, on a quiet machine
and with noise (a program burning a core at random times), and writes this page to
`.tox/diagnosis-runs/diagnosis.md`. A subset runs with the other tests."""
LEGEND = """\
- **reported**: number of reports; **false**: number of false reports.
- **required**: how many cells require it; **found**: how many of these report it. `A or B`: either;
  if reported, it counts in its own row.
- **quiet**: no noise, others used less than 0.25 cores, and the machine did not pause. The rest is
  **noise**, including most scenarios that only sleep (run three at a time).
- **inconclusive**: required, but the cell is correctly inconclusive: the machine paused, or, with
  noise, an app that does more than sleep waited for a core for 5 % or more of its response time.
  Recall counts these as found.

Checks:

- **premise**: kept-alive connections are distributed as the scenario specifies.
- **law**: over the whole load, requests in flight = throughput x mean response (Little 1961).
- **contradiction**: no level above a saturated one is below capacity; no verdict contradicts the
  knee.
- **comparison**: identical servers show no difference.
- **exit**: the exit code is correct and no trial is missing; only failures count."""
MISSES = """\
## Misses

A missing finding is followed by the cell's verdict and diagnosis."""
SAID = (RIGHT, ALLOWED, FALSE)
HEAD = ("", "reported", "false", "required", "found, quiet", "found, noise", "inconclusive")


def summary(every: Sequence[Statement]) -> str:
    """In one paragraph."""
    said = [one for one in every if one.outcome in SAID]
    told = [one for one in said if one.kind in ("verdict", "finding")]
    false = [one for one in told if one.outcome == FALSE]
    others = Counter(one.kind for one in every if one.outcome == FALSE and one not in false)
    parts = [f"{len(told)} verdicts and findings, {len(false)} false"]
    recall = []
    for noisy, label in ((False, "quiet"), (True, "noise")):
        due = [one for one in _due(every) if one.noisy == noisy and one.kind == "finding"]
        found = [one for one in due if one.outcome != MISSING]
        recall.append(f"{label} {_share(len(found), len(due))}")
    kinds = ("premise", "law", "contradiction", "comparison", "exit")
    checks = [f"{kind} {others[kind]} of {_checked(every, kind)}" for kind in kinds]
    parts.append(f"recall of findings: {', '.join(recall)}")
    parts.append(f"failed checks: {', '.join(checks)}")
    return "; ".join(parts) + "."


def _checked(every: Iterable[Statement], kind: str) -> int:
    return sum(one.kind == kind for one in every)


def _due(every: Iterable[Statement]) -> Iterator[Statement]:
    """What had to be said. A wrong verdict is both: something false, and something missing."""
    return (one for one in every if one.outcome in (MISSING, EXCUSED, RIGHT))


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none due"


def rows(every: Sequence[Statement]) -> Iterator[tuple[str, ...]]:
    told = [one for one in every if one.kind in ("verdict", "finding")]
    for kind, code in sorted({(one.kind, one.code) for one in told}, reverse=True):
        own = [one for one in told if (one.kind, one.code) == (kind, code)]
        count = Counter(one.outcome for one in own)
        by_noise = []
        for noisy in (False, True):
            due = [one for one in _due(own) if one.noisy == noisy]
            found = sum(one.outcome == RIGHT for one in due)
            by_noise.append(f"{found}/{len(due)}" if due else "")
        said = count[RIGHT] + count[FALSE] + count[ALLOWED]
        cells = (said, count[FALSE], sum(1 for _ in _due(own)))
        yield (code, *map(str, cells), *by_noise, str(count[EXCUSED] or ""))


def misses(every: Iterable[Statement]) -> list[Statement]:
    """What was false or missing, each once; of a wrong verdict what was said."""
    found = []
    for one in every:
        if one.wrong and not (one.kind == "verdict" and one.outcome == MISSING):
            found.append(one)
    return found


def line_of(one: Statement) -> str:
    noise = "noise" if one.noisy else "quiet"
    return f"{one.scenario} ({one.where}; {noise}): {one.outcome} {one.kind} {one.code}"


def as_text(every: Sequence[Statement]) -> str:
    table = [HEAD, *rows(every)]
    widths = [max(len(row[place]) for row in table) for place in range(len(HEAD))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    found = misses(every)
    listed = [f"{line_of(one)}\n    {one.sentence}" for one in found]
    return "\n".join([*lines, "", summary(every), "", *listed]) + "\n"


def as_markdown(every: Sequence[Statement], ran: Sequence[Ran]) -> str:
    """The page in docs/. `ran`: the runs that were judged."""
    beside = sum(one.noise for one in ran)
    runs = f"{len(ran)} runs, {beside} beside noise:"
    head = ("finding or verdict", *HEAD[1:])
    by_code = _markdown([head, *rows(every)])
    heading = ("scenario", "known behaviour", "reported", "false or missing")
    kinds = _markdown([heading, *by_scenario(every)])
    found = misses(every)
    listed = [f"- {line_of(one)}: {one.sentence}" for one in found] or ["None."]
    total = f"{runs} {summary(every)}"
    page = (INTRODUCTION, total, LEGEND, by_code, "## Scenarios", kinds, MISSES)
    return "\n\n".join(page) + "\n\n" + "\n".join(listed) + "\n"


def by_scenario(every: Sequence[Statement]) -> Iterator[tuple[str, ...]]:
    """Those that were run."""
    for scenario in SCENARIOS.values():
        own = [one for one in every if one.scenario == scenario.name]
        said = sum(one.kind in ("verdict", "finding") and one.outcome in SAID for one in own)
        if own:
            yield scenario.name, scenario.why, str(said), str(len(misses(own)) or "")


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
