"""The charts of `workerlab ladder`: throughput, where the time goes, round trips."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.ladder.steps import Ladder, Step
from harness.experiments.ladder.tables import PARTS, Getter
from harness.model import Chart, Finding, Series

SHORT_S = 0.001  # what is shorter is drawn in microseconds
REMOVED = Finding("ladder.chart.removed")  # below every chart


def charts(ladder: Ladder) -> tuple[Chart, ...]:
    times = [_times(steps) for steps in (ladder.one_user, ladder.conclusive) if steps]
    return (_rates(ladder), *times, *([_trips(ladder.conclusive)] if ladder.conclusive else []))


def _rates(ladder: Ladder) -> Chart:
    """A group of bars per step, a bar per tool."""
    places = {name: place for place, name in enumerate(ladder.removed)}
    series = tuple(
        Series(load.text, tuple((places[step.configuration.name], step.rps) for step in steps))
        for load, steps in (ladder.many_users or ladder.steps).items()
    )
    return Chart(
        Finding("ladder.chart.rates"), REMOVED, Finding("ladder.chart.rps"), series, form="bars",
        names=tuple(ladder.removed.values()), note=Finding("ladder.table.steps.note"),
    )  # fmt: skip


def _times(steps: Sequence[Step]) -> Chart:
    """What is below 0 cannot be stacked."""
    longest_s = max(step.load.users / step.rps for step in steps)
    unit, per_s = ("ms", 1e3) if longest_s >= SHORT_S else ("us", 1e6)
    parts = [(f"part.{name}", _points(steps, value, per_s)) for name, value in PARTS]
    above_0 = [(code, tuple(one for one in points if one[1] > 0)) for code, points in parts]
    return Chart(
        Finding("ladder.table.times", {"load": steps[0].load.text}), REMOVED,
        Finding("ladder.chart.time", {"unit": unit}),
        tuple(Series(Finding(code), points) for code, points in above_0 if points),
        form="stacked", names=_names(steps), note=Finding("ladder.chart.times.note"),
    )  # fmt: skip


def _trips(steps: Sequence[Step]) -> Chart:
    kinds = ("redis", "storage")
    series = tuple(
        Series(Finding(f"part.{kind}"), _points(steps, _counted(f"{kind}_trips"))) for kind in kinds
    )
    return Chart(
        Finding("ladder.chart.trips"), REMOVED, Finding("ladder.chart.trips.axis"), series,
        form="stacked", names=_names(steps), note=Finding("ladder.chart.trips.note"),
    )  # fmt: skip


def _counted(name: str) -> Getter:
    return lambda step: step.metric("per_request", name)


def _names(steps: Sequence[Step]) -> tuple[Finding, ...]:
    return tuple(step.removed for step in steps)


def _points(
    steps: Sequence[Step], value: Getter, times: float = 1.0
) -> tuple[tuple[float, float], ...]:
    """Those that are known, by the step's place."""
    known = [(place, value(step)) for place, step in enumerate(steps)]
    return tuple((place, times * y) for place, y in known if isinstance(y, int | float))
