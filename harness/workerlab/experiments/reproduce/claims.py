"""Each claim of a write-up, judged: held, corrected, or not shown. Pure.

A test lies inside its range, outside, or is open. A ratio lies inside where its whole interval over
fresh launches does, outside where none of it does; a value where that of every launch does. A claim
holds where all its tests lie inside. It is corrected where one lies outside and everything that is
so instead is shown as well. All else is not shown, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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


class Held(JudgedClaim):
    """Held: {measured:; }."""

    measured: tuple[str, ...]


class Corrected(JudgedClaim):
    """Corrected: {instead}[[ {why}]] ({measured:; }.)"""

    instead: str
    why: str
    measured: tuple[str, ...]


class NotShown(JudgedClaim):
    """Not shown: {reason}."""

    reason: str


class Measured(Struct, frozen=True):
    """What the parts have to say. `cells`: by their names in the file. `conclusions`: the codes
    that each part shows. `missing`: why a part has no result, by its name. `parts`: of the cells.
    `cores`: of the machine; None: not known."""

    cells: Mapping[str, MeasuredCell]
    conclusions: Mapping[str, Collection[str]]
    missing: Mapping[str, str]
    parts: Mapping[str, str]
    cores: int | None = None

    def values(self, figure: str) -> list[Any]:
        name, _, path = figure.partition(".")
        return self.cells[name].values(path) if name in self.cells else []

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


class Answer(Struct, frozen=True):
    """Of one test. `text`: what was measured, or why that decides nothing."""

    outcome: Outcome
    text: str


def judge(claim: Claim, measured: Measured) -> Held | Corrected | NotShown:
    answers = [answer_to(test, measured) for test in claim.tests]
    texts = tuple(answer.text for answer in answers)
    outcomes = {answer.outcome for answer in answers}
    if outcomes == {"inside"}:
        return Held(claim.number, claim.text, texts)
    few_cores = measured.cores is not None and measured.cores < claim.cores
    if "outside" not in outcomes or claim.instead is None or few_cores:
        reasons = [answer.text for answer in answers if answer.outcome != "inside"]
        if few_cores:
            reasons.insert(0, f"it needs {claim.cores} cores, this machine has {measured.cores}")
        return NotShown(claim.number, claim.text, "; ".join(dict.fromkeys(reasons)))
    instead = [answer_to(test, measured) for test in claim.instead.tests]
    undecided = [answer.text for answer in instead if answer.outcome != "inside"]
    if undecided:
        outside = [answer.text for answer in answers if answer.outcome == "outside"]
        reason = f"not as the write-up has it ({'; '.join(outside)}), and what is so instead is"
        return NotShown(claim.number, claim.text, f"{reason} undecided: {'; '.join(undecided)}")
    texts = (*texts, *(answer.text for answer in instead))
    return Corrected(claim.number, claim.text, claim.instead.text, claim.instead.why, texts)


def answer_to(test: ClaimTest, measured: Measured) -> Answer:
    if test.part is not None:
        return _conclusion(test, test.part, measured)
    figures = test.ratio or tuple(filter(None, (test.value, test.over)))
    if why := measured.why_missing(figures):
        return Answer("open", why)
    if test.ratio is not None:
        return _ratio(test, *map(measured.values, test.ratio))
    values = measured.values(figures[0])
    if test.equals is not None:
        return _text(test, values)
    if test.over is not None:
        pairs = zip(values, measured.values(test.over), strict=False)  # one may not tell it
        values = [value / other for value, other in pairs if other]
    return _value(test, values)


def _conclusion(test: ClaimTest, part: str, measured: Measured) -> Answer:
    if part in measured.missing:
        return Answer("open", measured.missing[part])
    codes = measured.conclusions[part]
    if any(code in codes for code in test.shows) and not any(code in codes for code in test.lacks):
        return Answer("inside", test.says)
    return Answer("outside", f"not found: {test.says}")


def _ratio(test: ClaimTest, after: list[float], before: list[float]) -> Answer:
    after, before = ([value for value in values if value > 0] for values in (after, before))
    if not (after and before):
        return Answer("open", f"{test.says}: nothing was measured that is above 0")
    quotient = ratio(after, before)
    text = f"{test.says} {FORMATS['factor'](quotient.value)}"
    if quotient.low is None or quotient.high is None:
        return Answer("open", f"{text}, in one launch, has no interval (--trials {TRIALS})")
    low, high = test.between
    text += f" ({FORMATS['factor'](quotient.low)} to {FORMATS['factor'](quotient.high)})"
    inside = low <= quotient.low and quotient.high <= high
    outside = quotient.high < low or quotient.low > high
    if test.original is not None:
        text += f", in the write-up {FORMATS['factor'](test.original)}"
    return _within(inside, outside, text, test)


def _value(test: ClaimTest, values: list[float]) -> Answer:
    low, high = test.between
    ends = dict.fromkeys(_written(value, test) for value in (min(values), max(values)))
    text = f"{test.says} {' to '.join(ends)}"
    inside = [low <= value <= high for value in values]
    if test.original is not None:
        text += f", in the write-up {_written(test.original, test)}"
    return _within(all(inside), not any(inside), text, test)


def _text(test: ClaimTest, values: list[str]) -> Answer:
    text = f"{test.says} {' or '.join(sorted(set(values)))}"
    same = [value == test.equals for value in values]
    return _within(all(same), not any(same), text, test)


def _written(value: float, test: ClaimTest) -> str:
    return FORMATS[test.form](value)


def _within(inside: bool, outside: bool, text: str, test: ClaimTest) -> Answer:
    if inside or outside:
        return Answer("inside" if inside else "outside", text)
    low, high = test.between
    return Answer("open", f"{text}: inconclusive, as {low:g} to {high:g} would decide it")
