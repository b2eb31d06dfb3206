"""Precision and recall per finding, and every miss with the sentence that was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import ALLOWED, EXCUSED, FALSE, MISSING, RIGHT, Statement
from tests.diagnosis.store import Ran

INTRODUCTION = """\
# How often the diagnosis is right

What the lab says of a server is held against servers of which the truth is known: apps whose
waits, locks, blocked loops and deaths are arranged, so that a verdict or a cause is right or
wrong by how they are made. `tests/diagnosis/scenarios.py` has them, with what must be reported
and what must not; what is not listed must not. Each is run through the command line, again and
again, on a quiet machine and beside a program that burns a core at random times. `tox run -e
diagnosis` does all that and writes this page; a part of it runs with the other tests.

- **said**: how often a verdict or finding was reported; **false**: how often it was not so.
- **due**: how often it had to be reported; **found**: of these, how often it was, on a quiet
  machine and beside others. It counts as quiet where other programs used less than a quarter of a
  core. Scenarios that only sleep run three at a time, so that most of them have company, too.
- **inconclusive**: due and not reported, where the cell said that it is inconclusive and rightly
  so: its processes waited for a core for 5 % or more of the response time, beside others, and the
  app does more than sleep.
- Laws: over the whole load, requests in flight are throughput times mean response (Little 1961).
  Contradictions: a server that is saturated at one level and below capacity at a higher one."""
SAID = (RIGHT, ALLOWED, FALSE)
HEAD = ("", "said", "false", "due", "found, quiet", "found, noise", "inconclusive")


def summary(every: Sequence[Statement]) -> str:
    """In one paragraph."""
    said = [one for one in every if one.outcome in SAID]
    told = [one for one in said if one.kind in ("verdict", "finding")]
    false = [one for one in told if one.outcome == FALSE]
    others = Counter(one.kind for one in every if one.outcome == FALSE and one not in false)
    parts = [f"{len(told)} verdicts and findings, {len(false)} of them false"]
    for noisy, label in ((False, "quiet"), (True, "noise")):
        due = [one for one in _due(every) if one.noisy == noisy and one.kind == "finding"]
        found = [one for one in due if one.outcome != MISSING]
        parts.append(f"recall of findings, {label}: {_share(len(found), len(due))}")
    for kind in ("premise", "law", "contradiction", "comparison", "exit"):
        parts.append(f"{kind}: {others[kind]} broken of {_checked(every, kind)}")
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
    runs = f"{len(ran)} runs, {beside} of them beside a program that burns a core at random times:"
    head = ("finding or verdict", *HEAD[1:])
    by_code = _markdown([head, *rows(every)])
    kinds = _markdown([("scenario", "true because", "said", "wrong"), *by_scenario(every)])
    found = misses(every)
    listed = [f"- {line_of(one)}: {one.sentence}" for one in found] or ["None."]
    page = (INTRODUCTION, f"{runs} {summary(every)}", by_code, "## Scenarios", kinds, "## Misses")
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
