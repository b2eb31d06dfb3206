"""Judges each claim of a write-up: held, corrected, or not shown. Pure.

A test lies inside its range, outside, or is open. A ratio lies inside if its whole interval over
fresh launches does, outside if none of it does; a value, if that of every launch does. A claim
holds if all its tests lie inside. It is corrected if one lies outside and every test of the
correction lies inside. Anything else is not shown, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import Any, Literal

from msgspec import Struct

from workerlab.experiments.reproduce.cells import MeasuredCell
from workerlab.experiments.reproduce.writeups import Claim, ClaimTest
from workerlab.finding import Finding
from workerlab.numbers.formats import FORMATS
from workerlab.numbers.intervals import TRIALS, ratio

Outcome = Literal["inside", "outside", "open"]


class JudgedClaim(Finding):
    """{number:count}. {claim}"""

    number: int
    claim: str

    @property
    def question(self) -> str:
        return f"{self.number}. {self.claim}"


class ClaimHeld(JudgedClaim):
    """Held: {measured:; }."""

    measured: tuple[str, ...]


class ClaimCorrected(JudgedClaim):
    """Corrected: {instead}[[ {why}]] ({measured:; }.)"""

    instead: str
    why: str
    measured: tuple[str, ...]


class ClaimNotShown(JudgedClaim):
    """Not shown: {reason}."""

    reason: str


class MeasuredParts(Struct, frozen=True):
    """The results of the parts. `cells`: by their names in the file. `conclusions`: codes that each
    part shows. `missing`: why a part has no result, by its name. `parts`: the part of each cell.
    `cores`: of the machine; None: unknown."""

    cells: Mapping[str, MeasuredCell]
    conclusions: Mapping[str, Collection[str]]
    missing: Mapping[str, str]
    parts: Mapping[str, str]
    cores: int | None = None

    def values(self, figure: str) -> list[Any]:
        name, _, path = figure.partition(".")
        return self.cells[name].values(path) if name in self.cells else []

    def quotients(self, figure: str, over: str) -> list[float]:
        """One per launch; a value of another cell, which has other launches, is replaced by its
        mean. Divisions by 0 are left out."""
        (name, _, path), (divisor, _, divisor_path) = figure.partition("."), over.partition(".")
        if name == divisor:
            pairs = self.cells[name].pairs(path, divisor_path)
        else:
            mean = fmean(self.values(over))
            pairs = [(value, mean) for value in self.values(figure)]
        return [value / divided_by for value, divided_by in pairs if divided_by]

    def why_missing(self, figures: Iterable[str]) -> str:
        for figure in figures:
            name, _, path = figure.partition(".")
            if self.parts[name] in self.missing:
                return self.missing[self.parts[name]]
            if name not in self.cells:
                return f"the cell {name} was not measured"
            if not self.values(figure):
                return f"no valid launch of the cell {name} has a figure {path}"
        return ""


class TestAnswer(Struct, frozen=True):
    """Of one test. `text`: the measurement, or why it is inconclusive."""

    outcome: Outcome
    text: str


def judge(claim: Claim, measured: MeasuredParts) -> ClaimHeld | ClaimCorrected | ClaimNotShown:
    answers = [answer_to(test, measured) for test in claim.tests]
    texts = tuple(answer.text for answer in answers)
    outcomes = {answer.outcome for answer in answers}
    if outcomes == {"inside"}:
        return ClaimHeld(claim.number, claim.text, texts)
    few_cores = measured.cores is not None and measured.cores < claim.cores
    if "outside" not in outcomes or claim.instead is None or few_cores:
        reasons = [answer.text for answer in answers if answer.outcome != "inside"]
        if few_cores:
            reasons.insert(0, f"it needs {claim.cores} cores, this machine has {measured.cores}")
        return ClaimNotShown(claim.number, claim.text, "; ".join(dict.fromkeys(reasons)))
    instead = [answer_to(test, measured) for test in claim.instead.tests]
    undecided = [answer.text for answer in instead if answer.outcome != "inside"]
    if undecided:
        outside = [answer.text for answer in answers if answer.outcome == "outside"]
        reason = f"not as the write-up has it ({'; '.join(outside)}), and what is so instead is"
        reason += f" undecided: {'; '.join(undecided)}"
        return ClaimNotShown(claim.number, claim.text, reason)
    texts = (*texts, *(answer.text for answer in instead))
    return ClaimCorrected(claim.number, claim.text, claim.instead.text, claim.instead.why, texts)


def answer_to(test: ClaimTest, measured: MeasuredParts) -> TestAnswer:
    if test.part is not None:
        return _conclusion(test, test.part, measured)
    figures = test.ratio or tuple(filter(None, (test.value, test.over)))
    if why := measured.why_missing(figures):
        return TestAnswer("open", why)
    if test.ratio is not None:
        return _ratio(test, *map(measured.values, test.ratio))
    values = measured.values(figures[0])
    if test.equals is not None:
        return _text(test, values)
    if test.over is not None:
        values = measured.quotients(figures[0], test.over)
    if not values:
        return TestAnswer("open", f"{test.says} a figure over 0")
    return _value(test, values)


def _conclusion(test: ClaimTest, part: str, measured: MeasuredParts) -> TestAnswer:
    if part in measured.missing:
        return TestAnswer("open", measured.missing[part])
    codes = measured.conclusions[part]
    if any(code in codes for code in test.shows) and not any(code in codes for code in test.lacks):
        return TestAnswer("inside", test.says)
    return TestAnswer("outside", f"not found: {test.says}")


def _ratio(test: ClaimTest, after: list[float], before: list[float]) -> TestAnswer:
    after, before = ([value for value in values if value > 0] for values in (after, before))
    if not (after and before):
        return TestAnswer("open", f"{test.says}: nothing was measured that is above 0")
    quotient = ratio(after, before)
    text = f"{test.says} {FORMATS['factor'](quotient.value)}"
    if quotient.low is None or quotient.high is None:
        return TestAnswer("open", f"{text}, in one launch, has no interval (--trials {TRIALS})")
    low, high = test.between
    text += f" ({FORMATS['factor'](quotient.low)} to {FORMATS['factor'](quotient.high)})"
    inside = low <= quotient.low and quotient.high <= high
    outside = quotient.high < low or quotient.low > high
    if test.original is not None:
        text += f", in the write-up {FORMATS['factor'](test.original)}"
    return _within(inside, outside, text, test)


def _value(test: ClaimTest, values: list[float]) -> TestAnswer:
    low, high = test.between
    ends = dict.fromkeys(_written(value, test) for value in (min(values), max(values)))
    text = f"{test.says} {' to '.join(ends)}"
    inside = [low <= value <= high for value in values]
    if test.original is not None:
        text += f", in the write-up {_written(test.original, test)}"
    return _within(all(inside), not any(inside), text, test)


def _text(test: ClaimTest, values: list[str]) -> TestAnswer:
    text = f"{test.says} {' or '.join(sorted(set(values)))}"
    same = [value == test.equals for value in values]
    return _within(all(same), not any(same), text, test)


def _written(value: float, test: ClaimTest) -> str:
    return FORMATS[test.form](value)


def _within(inside: bool, outside: bool, text: str, test: ClaimTest) -> TestAnswer:
    if inside or outside:
        return TestAnswer("inside" if inside else "outside", text)
    low, high = test.between
    return TestAnswer("open", f"{text}: inconclusive, as {low:g} to {high:g} would decide it")
