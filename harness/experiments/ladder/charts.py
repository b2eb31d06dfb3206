"""The charts of `workerlab ladder`: what came out, where the time went, how many round trips."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.ladder.steps import Ladder, Step, named
from harness.experiments.ladder.tables import PARTS, RUNGS_NOTE, TIME_NOTE
from harness.model import Chart, Finding, Series

SHORT_S = 0.001  # what is shorter is drawn in microseconds


def charts(ladder: Ladder) -> tuple[Chart, ...]:
    found = [_rates(ladder), *(_spent(steps) for steps in (ladder.alone, ladder.crowd) if steps)]
    return (*found, *([_trips(ladder.crowd)] if ladder.crowd else []))


def _rates(ladder: Ladder) -> Chart:
    """A group of bars per rung, a bar per tool."""
    shown = ladder.crowds or ladder.steps
    rungs = [rung for rung in ladder.rungs if not rung.why_not]
    places = {rung.name: place for place, rung in enumerate(rungs)}
    series = tuple(
        Series(load.words, tuple((places[step.rung.name], step.rps) for step in steps))
        for load, steps in shown.items()
    )
    return Chart(
        "Requests per second", "removed", "requests/s", series, form="bars",
        names=tuple(map(named, rungs)), note=RUNGS_NOTE,
    )  # fmt: skip


def _spent(steps: Sequence[Step]) -> Chart:
    longest_s = max((step.load.users / step.rps for step in steps), default=0.0)
    unit, per_s = ("milliseconds", 1e3) if longest_s >= SHORT_S else ("microseconds", 1e6)
    series = []
    for name, _, value in PARTS:
        known = [(place, value(step)) for place, step in enumerate(steps)]
        points = tuple((place, per_s * s) for place, s in known if s is not None and s > 0)
        series += [Series(Finding(f"part.{name}"), points)] if points else []
    return Chart(
        f"Where the time goes, {steps[0].load.words}", "removed", f"{unit} per request",
        tuple(series), form="stacked", names=tuple(step.name for step in steps),
        note=f"{TIME_NOTE} What is below 0 is not drawn."
    )  # fmt: skip


def _trips(steps: Sequence[Step]) -> Chart:
    kinds = (("Redis", "redis_trips"), ("storage", "storage_trips"))
    series = []
    for title, name in kinds:
        known = [(place, step.per_request(name)) for place, step in enumerate(steps)]
        series.append(Series(title, tuple((place, n) for place, n in known if n is not None)))
    return Chart(
        "Round trips per request", "removed", "round trips", tuple(series), form="stacked",
        names=tuple(step.name for step in steps),
        note="Counted in the app's workers; what a cache inside them had cost none.",
    )  # fmt: skip
