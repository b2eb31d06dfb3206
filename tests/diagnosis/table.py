"""Precision and recall per finding, and every miss with the sentence that was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.diagnosis.judge import ALLOWED, EXCUSED, FALSE, MISSING, RIGHT, Statement

HEAD = ("", "said", "false", "due", "found, quiet", "found, noise", "inconclusive")


def summary(every: Sequence[Statement]) -> str:
    """In one paragraph."""
    said = [one for one in every if one.outcome in (RIGHT, ALLOWED, FALSE)]
    told = [one for one in said if one.kind in ("verdict", "finding")]
    false = [one for one in told if one.outcome == FALSE]
    others = Counter(one.kind for one in every if one.outcome == FALSE and one not in false)
    parts = [f"{len(told)} verdicts and findings, {len(false)} of them false"]
    for noisy, label in ((False, "quiet"), (True, "noise")):
        due = [one for one in _due(every) if one.noisy == noisy and one.kind == "finding"]
        found = [one for one in due if one.outcome != MISSING]
        parts.append(f"recall of findings, {label}: {_share(len(found), len(due))}")
    for kind in ("law", "contradiction", "exit"):
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


def as_markdown(every: Sequence[Statement]) -> str:
    head = ("finding or verdict", *HEAD[1:])
    table = [head, ("---", *["--:"] * (len(head) - 1)), *rows(every)]
    lines = ["| " + " | ".join(cell.replace("|", " or ") for cell in row) + " |" for row in table]
    found = misses(every)
    listed = [f"- {line_of(one)}: {one.sentence}" for one in found] or ["None."]
    return "\n".join([summary(every), "", *lines, "", "## Misses", "", *listed]) + "\n"
