"""Rounds numbers to the precision of the clocks, and makes text for readers: names of series and
cells, headings, tables."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

from workerlab.analysis.trials import mean_of
from workerlab.model.plan import Cell, Rate, Server
from workerlab.model.result import (
    ChartSeries,
    ClassResult,
    Column,
    Form,
    Invalid,
    Label,
    Look,
    Result,
    Table,
    TrialResult,
    Value,
)
from workerlab.numbers.units import counted, fill, listed, value_at
from workerlab.paths import BUNDLED_GUNICORN


def mean_column(
    field: str, form: Form = "number", *, heading: str = "", meaning: str = ""
) -> Column:
    """A column of the mean of a field, named after the last part of its path."""
    name = field.rpartition(".")[2]
    return Column(name, form, heading=heading, meaning=meaning, value=mean_of(field))


def text(label: Label | None) -> str:
    """The sentence of a finding, or a plain name unchanged; "" for None."""
    return str(label or "")


def printable(text: str) -> str:
    """Replaces control characters, which server output may contain, with spaces."""
    return "".join(char if char.isprintable() else " " for char in text)


def heading(column: Column) -> str:
    """The heading of a column; without one, its name without the unit, which is shown below the
    heading or in each value."""
    name = column.name.removesuffix("_bytes").replace("_rps", " req/s")
    name = name.removesuffix("_s") if column.form == "seconds" else name
    return column.heading or name.replace("_", " ")


def counts_text(counts: Mapping[str, int]) -> str:
    """Like "no_files 8982, reset 1", sorted by name."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


@overload
def finite(value: float | None) -> float | None: ...
@overload
def finite(value: Value) -> Value: ...
def finite(value: Value) -> Value:
    """`value`, or None if it is infinite or NaN, which JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rounded(value: float | None, decimals: int = 4) -> float | None:
    """`value` rounded, or None if it is missing or not finite."""
    value = finite(value)
    return None if value is None else round(value, decimals) + 0.0  # not -0.0


def significant(value: float) -> float | None:
    """`value` to six digits, the precision of the lab's best clock; None if not finite."""
    return float(f"{value:.6g}") + 0.0 if math.isfinite(value) else None  # not -0.0


def table(
    title: str,
    columns: Iterable[Column],
    items: Iterable[Any],
    note: str = "",
    **options: Any,
) -> Table:
    """A table with one row per item. `options`: as in `Table`."""
    return joined_table(title, [tuple(columns)], ((item,) for item in items), note=note, **options)


def joined_table(
    title: str,
    groups: Sequence[Sequence[Column]],
    items: Iterable[tuple[Any, ...]],
    **options: Any,
) -> Table:
    """A table whose rows combine objects: each of `items` is a tuple with one object per group of
    columns. `options`: as in `Table`."""
    rows = tuple(
        tuple(
            _value_of(column, part)
            for columns, part in zip(groups, item, strict=True)
            for column in columns
        )
        for item in items
    )
    return Table(title, tuple(chain(*groups)), rows, **options)


def _value_of(column: Column, item: Any) -> Value:
    source = column.value or column.name
    value: Value = figure_of(item, source) if isinstance(source, str) else source(item)
    return value


FIGURES = frozenset(dir(Result)) - frozenset(dir(Invalid))  # attributes of valid results only


def figure_of(item: Any, path: str) -> Any:
    """Like `value_at`, but None for a figure of an invalid trial."""
    if isinstance(item, Invalid) and path.partition(".")[0] in FIGURES:
        return None
    return value_at(item, path)


def curves(points: Iterable[tuple[str, float | None, float | None]]) -> tuple[ChartSeries, ...]:
    """One series per name, from points (name, x, y); points without x or y are left out."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in points:
        if x is not None and y is not None:
            lines.setdefault(name, []).append((x, y))
    return tuple(ChartSeries(name, tuple(line)) for name, line in lines.items())


def cores_of(environment: Mapping[str, object]) -> int | None:
    """The number of cores of the machine that ran the measurement; None if unknown."""
    cores = environment.get("cores")
    return cores if isinstance(cores, int) and cores > 0 else None


NUMERIC_SETTINGS = ("workers", "threads", "backlog", "worker_connections")  # fields of Server
# Settings in which servers of one worker class may differ
SETTINGS: Mapping[str, str] = {
    "workers": "{value:# worker}",
    "threads": "{value:# thread}",
    "backlog": "backlog {value}",
    "worker_connections": "{value} worker connections",
    "cpu_s": "{value:duration} of CPU per request",
    "cores": "server on {value:# core}",
    "gunicorn": "Gunicorn {value}",
    "python": "{value}",
}
KEEPALIVE = "keep-alive"
PARTS: Mapping[str, str] = {  # the parts of a response time, and their labels
    "connect": "connect",
    "accept_queue": "accept queue",
    "in_worker": "in the worker",
    "service": "in the app",
    "transfer": "transfer",
    "unattributed": "unattributed",
}


# Colour and shape of each part on the page
PART_LOOKS: Mapping[str, Look] = {part: (part.replace("_", "-"), "circle") for part in PARTS}


def varying_settings(servers: Iterable[Server]) -> dict[str, set[str]]:
    """The settings that differ within a worker class, with the classes. Tables must show them.

    Threads that differ only between classes, since gthread alone has them, are in the title.
    """
    servers, classes = tuple(servers), dict[str, set[str]]()
    for name in SETTINGS:
        values: dict[str, set[object]] = {}
        for server in servers:
            values.setdefault(server.worker_class, set()).add(getattr(server, name))
        if varying := {worker_class for worker_class, used in values.items() if len(used) > 1}:
            classes[name] = varying
    return classes


def by_series(cells: Iterable[TrialResult]) -> Mapping[Cell, list[TrialResult]]:
    """The results of each series, by `Cell.series`."""
    series: dict[Cell, list[TrialResult]] = {}
    for cell in cells:
        series.setdefault(cell.trial.cell.series, []).append(cell)
    return series


def setting_text(name: str, value: int | str, exceptions: Iterable[str] = ()) -> str:
    """'4 workers'. `exceptions`: added in parentheses; from `in_force_instead`."""
    setting, remark = fill(SETTINGS[name], {"value": value}), "; ".join(exceptions)
    return f"{setting} ({remark})" if remark else setting


def load_tool(cell: Cell | ClassResult) -> str:
    """'ab', 'ab with 2 processes'."""
    processes = counted(cell.processes, "process/processes")
    return f"{cell.tool} with {processes}" if cell.processes > 1 else cell.tool


def load_of(cell: TrialResult) -> str:
    """'closed, 4 conn.', 'open, 80%', 'open, 200/s'."""
    rate = cell.trial.cell.rate
    if rate is None:
        return f"closed, {cell.trial.cell.concurrency} conn."
    return f"open, {rate_text(rate)}"


def rate_text(rate: Rate) -> str:
    """'80%', '200/s'."""
    return rate.label if rate.rps is None else f"{rate.label}/s"


def is_in_force(name: str, cell: TrialResult) -> bool:
    """Whether the requested value is effective; True if unknown. A class without threads satisfies
    a request for one thread."""
    requested = getattr(cell.server, name)
    in_force = cell.in_force.get(name, requested)
    return bool(in_force == requested or (name == "threads" and requested == 1))


def in_force_instead(name: str, cells: Sequence[TrialResult]) -> Iterator[str]:
    """'ignored by sync', '128 effective with gthread': effective values that were not requested."""
    classes_shown = {cell.server.worker_class for cell in cells}
    by_value: dict[int | None, dict[str, None]] = {}
    for cell in cells:
        if not is_in_force(name, cell):
            by_value.setdefault(cell.in_force[name], {})[cell.server.worker_class] = None
    for value, classes in by_value.items():
        if value is None:
            yield f"ignored by {listed(list(classes))}"
        else:
            all_classes = len(classes) == len(classes_shown)
            yield f"{value} effective" + ("" if all_classes else f" with {listed(list(classes))}")


def interpreter_text(python: str, gunicorn: object) -> str:
    """'.venv/bin/python with Gunicorn 23.0.0'."""
    return f"{python} with Gunicorn {gunicorn}" if gunicorn else python


def serving_software(environment: Mapping[str, object], servers: Iterable[Server]) -> str | None:
    """The interpreter and Gunicorn that serve the user's app; for a bundled app, the Gunicorn
    unless it is the bundled one, else None. Omits settings of individual servers, which are shown
    elsewhere. `environment`: that of the run."""
    servers = tuple(servers)
    directories = {server.app.chdir for server in servers}
    gunicorn = python = None
    if not any(server.gunicorn for server in servers):
        gunicorn = environment.get("gunicorn")
    if any(directories) and not any(server.python for server in servers):
        python = environment.get("server_python")
    if python is not None:
        prefix = f"{directories.pop()}/" if len(directories) == 1 else ""
        return interpreter_text(str(python).removeprefix(prefix), gunicorn)
    if gunicorn is None or (gunicorn == BUNDLED_GUNICORN and not any(directories)):
        return None
    return setting_text("gunicorn", str(gunicorn))


class Names:
    """Names the series and cells of one run by the settings that vary in it."""

    def __init__(self, cells: Sequence[TrialResult] = (), planned: Sequence[Cell] = ()) -> None:
        """`planned`: the cells to distinguish; if empty, those of the results."""
        planned = planned or [cell.trial.cell for cell in cells]
        self.settings = varying_settings(cell.server for cell in planned)
        self.tools_vary = len({cell.tool for cell in planned}) > 1
        self.processes_vary = len({cell.processes for cell in planned}) > 1
        self.keepalive_varies = len({cell.keepalive for cell in planned}) > 1
        self.several_trials = any(cell.trial.number > 1 for cell in cells)
        self._cells = cells

    def distinctions(self, cell: Cell | ClassResult) -> list[str]:
        """['4 threads', 'wrk']: the settings that distinguish a series from others of its class."""
        texts: list[str] = []
        for name, classes in self.settings.items():
            if cell.server.worker_class in classes:
                results = [result for result in self._cells if result.server == cell.server]
                value = getattr(cell.server, name)
                texts += [setting_text(name, value), *in_force_instead(name, results)]
        if self.tools_vary or cell.processes > 1:
            texts.append(load_tool(cell))
        if cell.keepalive and self.keepalive_varies:
            texts.append(KEEPALIVE)
        return texts

    def series(self, cell: Cell | ClassResult) -> str:
        """'gthread (4 threads, wrk)'."""
        values = {"name": cell.server.worker_class, "distinctions": self.distinctions(cell)}
        return fill("{name}[[ ({distinctions:, })]]", values)

    def cells_text(self, cells: Sequence[TrialResult]) -> str:
        """'every cell', or 'sync at 4 and 8 (trial 2), gthread at 16 and 80% (open)'. Trials are
        numbered unless `cells` has all trials of a level."""
        if len(cells) == len(self._cells) > 1:
            return "every cell"
        results, loads = Counter(cell.trial.cell for cell in self._cells), dict[str, list[str]]()
        for cell in dict.fromkeys(cell.trial.cell for cell in cells):
            numbers = [str(result.trial.number) for result in cells if result.trial.cell == cell]
            load = str(cell.concurrency)
            if cell.rate is not None:
                load = f"{rate_text(cell.rate)} (open)"
            if len(numbers) < results[cell]:
                load += f" ({'trial' if len(numbers) == 1 else 'trials'} {listed(numbers)})"
            loads.setdefault(self.series(cell), []).append(load)
        return ", ".join(f"{name} at {listed(levels)}" for name, levels in loads.items())
