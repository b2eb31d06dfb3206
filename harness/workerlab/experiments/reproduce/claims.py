"""Judges each claim of a write-up: held, corrected, or not shown.

A test is inside its range, outside, or open. A ratio is inside if its whole confidence interval
over fresh launches is; a value, if it is inside in every launch. Likewise for outside. A claim
holds if all its tests are inside. It is corrected if one is outside, every test of the correction
is inside, and the machine has the cores that the claim needs. Otherwise it is not shown, with the
reason.

`writeups.toml` contains the five write-ups behind the lab: their tables, their claims, and the
tests of each claim (`ClaimTest`). Claims are judged from the cells of runs of other commands, which
are the parts of a reproduction. A figure is `CELL.PATH`: the name of a cell in the file and the
path of a value in its results, such as "sync4.response.mean". `users = "all"` selects the results
of a worker class over all levels.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec
from workerlab.analysis.trials import grouped
from workerlab.errors import UsageError
from workerlab.experiments.generators.usage import is_low_rate, usage_of
from workerlab.experiments.ladder.steps import from_details
from workerlab.experiments.limits.results import results_of
from workerlab.experiments.reading import report_of, trial_data
from workerlab.finding import Finding
from workerlab.model.plan import Cell
from workerlab.model.result import Form, Result
from workerlab.numbers.intervals import TRIALS, ratio
from workerlab.numbers.units import FORMATS, value_at
from workerlab.run_store import Run

WRITEUPS_FILE = Path(__file__).with_name("writeups.toml")
Range = tuple[float, float]  # both ends included


class FileStruct(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the records read from writeups.toml; rejects unknown fields."""


class PartRun(FileStruct, frozen=True):
    """A run of another command. `takes_s`: its duration on two cores, in full and with --quick.
    `settings`: settings of all its cells that other runs of the command may lack."""

    name: str
    command: str
    quick: str
    takes_s: tuple[float, float]
    settings: Mapping[str, Any] = {}


class ClaimTest(FileStruct, frozen=True):
    """A falsifiable statement; `says` is its text. Exactly one of

        ratio      two figures: the first over the second, with its interval over fresh launches
        value      a figure that is checked in every launch; with `over`, relative to a second one
        equals     a figure that must equal this text in every launch
        shows      a part whose conclusions include one of these codes, and none of `lacks`

    `between`: the range of the ratio or value. `original`: the write-up's figure.
    """

    says: str
    ratio: tuple[str, str] | None = None
    value: str | None = None
    over: str | None = None
    between: Range = (0.0, math.inf)
    equals: str | None = None
    part: str | None = None
    shows: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    form: str = "number"  # format of a value, of FORMATS in `numbers.units`
    original: float | None = None


class Correction(FileStruct, frozen=True):
    """A statement that holds instead, with its own tests, and why the write-up found something
    else."""

    text: str
    tests: tuple[ClaimTest, ...]
    why: str = ""


class Claim(FileStruct, frozen=True):
    """`cores`: on a machine with fewer cores, a failed test proves nothing."""

    number: int
    text: str
    tests: tuple[ClaimTest, ...]
    cores: int = 1
    instead: Correction | None = None

    @property
    def all_tests(self) -> tuple[ClaimTest, ...]:
        return (*self.tests, *(self.instead.tests if self.instead else ()))


class Heading(FileStruct, frozen=True):
    """A pair of columns in the original's table: the original figures, and today's from `path`."""

    name: str
    heading: str
    path: str
    form: Form = "number"


class OriginalRow(FileStruct, frozen=True):
    """`then`: a figure for each pair of columns; "" if the write-up has none. `line`, `x`: its
    curve in the chart and its position there."""

    label: str
    cell: str
    then: tuple[float | Literal[""], ...]
    line: str = ""
    x: float | None = None

    @property
    def figures(self) -> tuple[float | None, ...]:
        return tuple(None if figure == "" else figure for figure in self.then)


class OriginalTable(FileStruct, frozen=True):
    """`chart`: the name of the pair of columns to draw."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[OriginalRow, ...]
    chart: str = ""
    x_title: str = ""


class WriteUp(FileStruct, frozen=True):
    """`machine`: when and where the original was measured, as far as known. `cells`: by name, the
    part and the settings that identify each."""

    name: str
    title: str
    machine: str
    part: tuple[PartRun, ...]
    cells: Mapping[str, Mapping[str, Any]]
    table: tuple[OriginalTable, ...]
    claim: tuple[Claim, ...]

    @property
    def parts(self) -> dict[str, PartRun]:
        """The parts by the names that distinguish them from parts of other write-ups."""
        return {f"{self.name}-{part.name}": part for part in self.part}

    @property
    def entries(self) -> dict[str, Mapping[str, Any]]:
        """The cells by name, each with its part and all settings that identify it."""
        settings = {part.name: part.settings for part in self.part}
        return {name: {**settings[cell["part"]], **cell} for name, cell in self.cells.items()}

    def takes_s(self, *, quick: bool) -> float:
        return sum(part.takes_s[quick] for part in self.part)


class _File(FileStruct, frozen=True):
    writeup: tuple[WriteUp, ...]


def write_ups() -> dict[str, WriteUp]:
    """All write-ups, by name, in the order of the file."""
    content = codec.convert(tomllib.loads(WRITEUPS_FILE.read_text(encoding="utf-8")), _File)
    return {writeup.name: writeup for writeup in content.writeup}


def write_ups_of(name: str) -> tuple[WriteUp, ...]:
    """The write-up of that name, or all write-ups for `all`. Raises UsageError."""
    writeups = write_ups()
    if name == "all":
        return tuple(writeups.values())
    if name not in writeups:
        raise UsageError(f"no write-up {name!r}: name {', '.join(writeups)} or all")
    return (writeups[name],)


class MeasuredCell(Struct, frozen=True):
    """`settings`: settings that identify the cell. `results`: those of its valid launches; their
    type depends on the command."""

    settings: Mapping[str, Any]
    results: tuple[object, ...]

    def has(self, entry: Mapping[str, Any]) -> bool:
        """Whether the cell has all settings of an entry of the file, which also names the part."""
        settings = {"part": entry["part"], **self.settings}
        return all(settings.get(name) == value for name, value in entry.items())

    def values(self, path: str) -> list[Any]:
        """The value at a path, of each launch that has it."""
        return [value for (value,) in self.tuples(path)]

    def tuples(self, *paths: str) -> list[tuple[Any, ...]]:
        """The values at these paths, of each launch that has all of them."""
        rows = (tuple(value_at(result, path) for path in paths) for result in self.results)
        return [values for values in rows if None not in values]


def measured_cells(run: Run) -> list[MeasuredCell]:
    """The cells of a run, in the order of its plan; one without a valid launch has no results."""
    launches = grouped(_launches(run), lambda launch: tuple(launch[0].items()))
    return [
        MeasuredCell(dict(key), tuple(result for _, result in pairs if result is not None))
        for key, pairs in launches.items()
    ]


def _launches(run: Run) -> Iterator[tuple[dict[str, Any], object | None]]:
    """(settings, result) of each launch; result None if it was not measured or is invalid."""
    if run.plan.kind == "generators":
        for data in trial_data(run):
            settings: dict[str, Any] = {
                "tool": data.cell.tool,
                "processes": data.cell.processes,
                "connections": data.cell.concurrency,
                "low": is_low_rate(data.cell),
                "keepalive": run.plan.details["keepalive"],
                "delay_s": fmean(run.plan.details.get("delay_s", (0.0,))),  # at full speed
            }
            usage = usage_of(data)
            yield settings, None if usage is None or usage.doubt else usage
    elif run.plan.kind == "limits":
        for step in results_of(trial_data(run), run.plan.details["steps"]):
            yield {"step": step.name}, None if step.missing else step
    else:
        ladder = from_details(run.plan) if run.plan.kind == "ladder" else ()
        services = {
            step.name: {
                "storage": step.storage,
                "cache": step.cache,
                "local_cache": step.local_cache,
                "stand_in": step.service(step.storage) if step.storage in step.stand_ins else "",
            }
            for step in ladder
        }
        report = report_of(run)
        for group in report.classes:
            yield {**_settings(group.series), "users": "all"}, group
        for result in report.cells:
            if result.trial.cell.rate is not None:  # no write-up has arrivals at a rate
                continue
            settings = _settings(result.trial.cell)
            settings |= services.get(result.trial.cell.server.name, {})
            yield settings, result if isinstance(result, Result) else None


SETTINGS: Mapping[str, str] = {  # paths in a Cell
    "worker_class": "server.worker_class",
    "workers": "server.workers",
    "threads": "server.threads",
    "backlog": "server.backlog",
    "servers": "server.instances",
    "server": "server.name",
    "cpu_s": "server.cpu_s",
    "server_cores": "server.cores",
    "sleep_s": "server.app.sleep_s",
    "keepalive": "keepalive",
    "tool": "tool",
    "processes": "processes",
    "users": "concurrency",
}


def _settings(cell: Cell) -> dict[str, Any]:
    return {name: value_at(cell, path) for name, path in SETTINGS.items()}


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
    """The results of the parts. `cells`: by their names in the file. `conclusions`: their codes, by
    part. `missing`: why a part has no result, by its name. `parts`: the part of each cell. `cores`:
    of the machine; None: unknown."""

    cells: Mapping[str, MeasuredCell]
    conclusions: Mapping[str, Collection[str]]
    missing: Mapping[str, str]
    parts: Mapping[str, str]
    cores: int | None = None

    def values(self, figure: str) -> list[Any]:
        name, _, path = figure.partition(".")
        return self.cells[name].values(path) if name in self.cells else []

    def stand_in(self, figures: Iterable[str]) -> str:
        """The server that replaced the write-up's in a cell of these figures; "": none."""
        names = (figure.partition(".")[0] for figure in figures)
        cells = (self.cells[name] for name in names if name in self.cells)
        return next(filter(None, (cell.settings.get("stand_in") for cell in cells)), "")

    def quotients(self, figure: str, over: str) -> list[float]:
        """`figure` / `over`, one for each launch. If `over` is a figure of another cell, with other
        launches, its mean is used. Divisions by 0 are left out."""
        (name, _, path), (divisor, _, divisor_path) = figure.partition("."), over.partition(".")
        if name == divisor:
            pairs = self.cells[name].tuples(path, divisor_path)
        else:
            pairs = [(value, self.mean(over)) for value in self.values(figure)]
        return [value / base for value, base in pairs if base]

    def mean(self, figure: str) -> float | None:
        values = self.values(figure)
        return fmean(values) if values else None

    def why_missing(self, figures: Iterable[str]) -> str:
        """Why the first figure without a value has none; "" if all have values."""
        for figure in figures:
            name, _, path = figure.partition(".")
            if why := self.missing.get(self.parts[name]):
                return why
            if name not in self.cells:
                return f"the cell {name} was not measured"
            if not self.values(figure):
                return f"no valid launch of the cell {name} has a figure {path}"
        return ""


class TestAnswer(Struct, frozen=True):
    """The outcome of one test. `text`: the measurement, or why it is inconclusive."""

    outcome: Outcome
    text: str


def judge(claim: Claim, parts: MeasuredParts) -> ClaimHeld | ClaimCorrected | ClaimNotShown:
    answers = [answer_to(test, parts) for test in claim.tests]
    texts = tuple(answer.text for answer in answers)
    reasons = texts_of(answers, "outside", "open")
    if not reasons:
        return ClaimHeld(claim.number, claim.text, texts)
    outside = "; ".join(texts_of(answers, "outside"))
    few_cores = parts.cores is not None and parts.cores < claim.cores
    if not outside or claim.instead is None or few_cores:
        if few_cores:
            reasons.insert(0, f"it needs {claim.cores} cores, but there are {parts.cores}")
        return ClaimNotShown(claim.number, claim.text, "; ".join(dict.fromkeys(reasons)))
    corrections = [answer_to(test, parts) for test in claim.instead.tests]
    if undecided := "; ".join(texts_of(corrections, "outside", "open")):
        reason = (
            f"the write-up's figure does not hold ({outside}), and its correction is inconclusive:"
            f" {undecided}"
        )
        return ClaimNotShown(claim.number, claim.text, reason)
    texts += tuple(answer.text for answer in corrections)
    return ClaimCorrected(claim.number, claim.text, claim.instead.text, claim.instead.why, texts)


def texts_of(answers: Iterable[TestAnswer], *outcomes: Outcome) -> list[str]:
    return [answer.text for answer in answers if answer.outcome in outcomes]


def answer_to(test: ClaimTest, parts: MeasuredParts) -> TestAnswer:
    if test.part is not None:
        return _conclusion(test, test.part, parts)
    figures = test.ratio or tuple(filter(None, (test.value, test.over)))
    if why := parts.why_missing(figures):
        return TestAnswer("open", why)
    if stand_in := parts.stand_in(figures):
        test = replace(test, says=f"with a {stand_in}, {test.says}")
    if test.ratio is not None:
        return _ratio(test, *map(parts.values, test.ratio))
    values = parts.values(figures[0])
    if test.equals is not None:
        matches = [value == test.equals for value in values]
        text = f"{test.says} {' or '.join(sorted(set(values)))}"
        return _answer(all(matches), not any(matches), text, requirement=f"be {test.equals}")
    if test.over is not None:
        values = parts.quotients(figures[0], test.over)
    if not values:
        return TestAnswer("open", f"{test.says} a division by zero")
    ends = dict.fromkeys(FORMATS[test.form](value) for value in (min(values), max(values)))
    text = f"{test.says} {' to '.join(ends)}"
    return _in_range(test, text, [(value, value) for value in values], test.form)


def _conclusion(test: ClaimTest, part: str, parts: MeasuredParts) -> TestAnswer:
    if part in parts.missing:
        return TestAnswer("open", parts.missing[part])
    codes = parts.conclusions[part]
    if any(code in codes for code in test.shows) and not any(code in codes for code in test.lacks):
        return TestAnswer("inside", test.says)
    return TestAnswer("outside", f"not found: {test.says}")


def _ratio(test: ClaimTest, dividends: list[float], divisors: list[float]) -> TestAnswer:
    if min(*dividends, *divisors) <= 0:
        return TestAnswer("open", f"{test.says}: a launch measured 0, so there is no ratio")
    quotient = ratio(dividends, divisors)
    factor = FORMATS["factor"]
    text = f"{test.says} {factor(quotient.value)}"
    if quotient.low is None or quotient.high is None:
        why = f"too few launches for an interval (--trials {TRIALS})"
        return TestAnswer("open", f"{text}: {why}")
    text += f" ({factor(quotient.low)} to {factor(quotient.high)})"
    return _in_range(test, text, [(quotient.low, quotient.high)], "factor")


def _in_range(
    test: ClaimTest, text: str, extents: list[tuple[float, float]], form: str
) -> TestAnswer:
    """`extents`: the lowest and highest value of each figure; `form`: of the write-up's figure."""
    low, high = test.between
    if test.original is not None:
        text += f", in the write-up {FORMATS[form](test.original)}"
    inside = all(low <= lowest and highest <= high for lowest, highest in extents)
    outside = all(highest < low or lowest > high for lowest, highest in extents)
    requirement = f"be {low:g} or more" if high == math.inf else f"lie between {low:g} and {high:g}"
    return _answer(inside, outside, text, requirement=requirement)


def _answer(inside: bool, outside: bool, text: str, *, requirement: str) -> TestAnswer:
    if inside or outside:
        return TestAnswer("inside" if inside else "outside", text)
    return TestAnswer("open", f"{text}: inconclusive; it must {requirement}")
