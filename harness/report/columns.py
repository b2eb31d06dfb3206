"""The columns a person reads, for the table and for Markdown. A missing value is "-"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.model import CellResult
from harness.numbers.units import MISSING, three_digits
from harness.report.document import SweepResult
from harness.report.sentences import SETTINGS, varying
from harness.report.values import finite

GENERATOR_BOUND = (
    "generator-bound: the load tool was the limit, so the figures are a lower bound of the server."
)
NOT_KNOWN = "not known"  # the slots of a class given by its dotted path


@dataclass(frozen=True)
class Column:
    """Heading, unit (said below the heading), and how a cell's value is said."""

    heading: str
    unit: str
    value: Callable[[CellResult], str]
    right: bool = True
    expendable: int = 0  # left out first where it is highest; 0: never
    meaning: str = ""  # said below the table


def three(value: float | None, factor: float = 1.0) -> str:
    """In three digits; what is rounded to nothing has no sign."""
    value = finite(value)
    if value is None:
        return MISSING
    text = three_digits(value * factor)
    return text.removeprefix("-") if float(text) == 0 else text


def _count(value: int | None) -> str:
    return MISSING if value is None else str(value)


def _slots(cell: CellResult) -> str:
    if cell.slots_configured is None and cell.verdict != "invalid":
        return "unlimited" if cell.worker_class.slots_known else NOT_KNOWN
    return _count(cell.slots_configured)


def columns(report: SweepResult) -> list[Column]:
    """The columns of this report."""
    return leading(report) + _rates() + _times(report) + _ends()


def leading(report: SweepResult) -> list[Column]:
    """Which cell it is: settings that never vary are left to the line above the table."""
    cells = report.cells
    found = [Column("class", "", lambda c: c.trial.cell.server.worker_class, right=False)]
    for name in varying(cell.trial.cell.server for cell in cells):
        heading = "w. conn." if name == "worker connections" else name
        found.append(Column(heading, "", _setting(name)))
    if len({cell.trial.cell.tool for cell in cells}) > 1:
        found.append(Column("tool", "", lambda c: c.trial.cell.tool, right=False))
    if len({cell.trial.cell.processes for cell in cells}) > 1:
        found.append(
            Column(
                "proc.",
                "",
                lambda c: str(c.trial.cell.processes),
                meaning="processes of the load tool",
            )
        )
    if len({cell.trial.cell.keepalive for cell in cells}) > 1:
        found.append(Column("keep-alive", "", _keepalive, right=False))
    found.append(
        Column(
            "conn.", "", lambda c: str(c.trial.cell.concurrency), meaning="connections kept busy"
        )
    )
    if any(cell.trial.number > 1 for cell in cells):
        found.append(Column("trial", "", lambda c: str(c.trial.number)))
    return found


def _setting(name: str) -> Callable[[CellResult], str]:
    return lambda cell: str(SETTINGS[name](cell.trial.cell.server))


def _keepalive(cell: CellResult) -> str:
    return "on" if cell.trial.cell.keepalive else "off"


def _rates() -> list[Column]:
    at_once = "requests that can be served at once by the settings"
    most = "the most that were served at once"
    bound = "what connections or slots allow at best"
    return [
        Column("slots", "set", _slots, expendable=1, meaning=at_once),
        Column("slots", "used", lambda c: _count(c.slots_measured), meaning=most),
        Column("req/s", "", lambda c: three(c.throughput_rps)),
        Column("bound", "req/s", lambda c: three(c.bound_rps), expendable=4, meaning=bound),
    ]


def time_unit(report: SweepResult) -> tuple[str, float]:
    """One for all times: seconds as soon as anything takes one."""
    longest = max((finite(cell.response.max) or 0.0 for cell in report.cells), default=0.0)
    return ("s", 1.0) if longest >= 1 else ("ms", 1e3)


def _times(report: SweepResult) -> list[Column]:
    unit, factor = time_unit(report)
    response = "response time"
    return [
        Column("p50", unit, lambda c: three(c.response.p50, factor), meaning=response),
        Column("p95", unit, lambda c: three(c.response.p95, factor), True, 3, response),
        Column("max", unit, lambda c: three(c.response.max, factor), True, 2, response),
    ]


def _ends() -> list[Column]:
    return [
        Column("failed", "", lambda c: _count(c.failed)),
        Column("verdict", "", lambda c: c.verdict, right=False),
    ]


def legend(chosen: Sequence[Column], cells: Sequence[CellResult]) -> str:
    """What the headings mean: 'p50, p95, max: response time. wait: ...'."""
    meanings: dict[str, list[str]] = {}
    for column in chosen:
        if column.meaning:
            meanings.setdefault(column.meaning, []).append(name(column))
    said = [f"{', '.join(names)}: {meaning}." for meaning, names in meanings.items()]
    if any(column.heading == "verdict" for column in chosen):
        said += [GENERATOR_BOUND] if any(c.verdict == "generator-bound" for c in cells) else []
    if any(column.value(cell) == MISSING for column in chosen for cell in cells):
        said.append(f"{MISSING}: missing.")
    return " ".join(said)


def name(column: Column) -> str:
    """The heading in a sentence; two columns are called slots."""
    return f"{column.heading} {column.unit}" if column.heading == "slots" else column.heading
