"""The pairs of launches of a `compare` run: the metrics of each side, and the changes so far."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec
from workerlab.analysis.cell_targets import load_level
from workerlab.analysis.verdict import was_left_out
from workerlab.experiments.budget import used_s
from workerlab.experiments.compare import options
from workerlab.experiments.compare.comparison import (
    LOOKS,
    METRICS,
    Change,
    Launch,
    Pair,
    all_decided,
    changes,
    pairs_at_last_look,
)
from workerlab.experiments.reading import report_of, trial_data
from workerlab.model import Cell, CellResult, Plan
from workerlab.numbers.units import fill
from workerlab.report.values import Names
from workerlab.run_store import Run
from workerlab.slo import Limit

SIDES = ("A", "B")
# Measured once per launch: they vary too much to continue until they are decided
ONCE_PER_LAUNCH = ("start_s", "stop_s")
DECIDING_METRICS = tuple(metric.name for metric in METRICS if metric.name not in ONCE_PER_LAUNCH)


class Group(Struct, frozen=True):
    """A cell of each side, with the same class and load."""

    a: Cell
    b: Cell


class CompareRequest(Struct, frozen=True):
    """The user's request, stored as the Plan's details."""

    groups: tuple[Group, ...]
    at_least: float
    budget_s: float
    words: tuple[str, str]  # of --a and --b
    limits: str = ""  # of --fail-if
    strict: bool = False
    junit: str = ""  # path of the limits as JUnit XML

    @classmethod
    def of(cls, plan: Plan) -> "CompareRequest":
        return codec.convert(plan.details, cls)


class GroupChanges(NamedTuple):
    """A group and its results at the last look. `left_out`: invalid launches, each with its side,
    "A" or "B"; `pairs_made`: number of valid pairs, including those since the last look;
    `launches`: number of valid launches of A and of B, None for pairs."""

    group: Group
    pairs: Sequence[tuple[CellResult, CellResult]]
    changes: Sequence[Change]
    left_out: Sequence[tuple[str, CellResult]]
    outcomes: Sequence[tuple[Limit, options.Outcome]] = ()  # of --fail-if
    apart: tuple[str, ...] = ()  # settings that groups of the same class and load do not share
    pairs_made: int = 0
    launches: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """'sync at 8 connections', 'sync (4 workers) against gevent at 8 connections'."""
        a, b = (cell.server.worker_class for cell in (self.group.a, self.group.b))
        values = {"a": a, "b": b if b != a else None, "apart": self.apart}
        named = fill("{a}[[ ({apart:, })]][[ against {b}]]", values)
        return f"{named} at {load_level(self.group.a)}"

    @property
    def decided(self) -> bool:
        """Whether no more pairs are needed, or the first MAX_INVALID_PAIRS were all invalid, or the
        first one since a server does not boot. With limits, only their outcomes count."""
        invalid_pairs = {cell.trial.cell.schedule for _, cell in self.left_out}
        none_boots = invalid_pairs and all(was_left_out(cell) for _, cell in self.left_out)
        if not self.pairs and (none_boots or len(invalid_pairs) >= MAX_INVALID_PAIRS):
            return True
        if self.outcomes:
            return all(outcome != "inconclusive" for _, outcome in self.outcomes)
        return all_decided(self.changes, DECIDING_METRICS)

    @property
    def next_look(self) -> int | None:
        """The number of pairs at the next look; None after the last."""
        return next((look for look in LOOKS if look > self.pairs_made), None)

    @property
    def needs_more_pairs(self) -> bool:
        return not self.decided and self.next_look is not None


MAX_INVALID_PAIRS = 3  # before a comparison without a valid pair gives up


def settings_apart(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """For each group, the settings of its server and load, as text, in which groups of the same
    class and load differ."""
    cells = [group.a for group in groups]
    names = Names(planned=cells)
    return [tuple(names.apart(cell)) for cell in cells]


def launch_metrics(run: Run, cell: CellResult) -> Launch:
    """The metrics of one launch by name; None if unknown."""
    record = run.records[cell.trial.key]
    requests, usage, parts = cell.requests or 0, cell.usage, cell.breakdown
    cores = usage.server_cores
    part_names = ("connect", "accept_queue", "in_worker", "service", "transfer", "response")
    return {
        "throughput_rps": cell.throughput_rps,
        "response_p50_s": cell.response.p50,
        "response_p95_s": cell.response.p95,
        "cpu_s": cores * cell.load_s / requests if cores and cell.load_s and requests else None,
        "memory_bytes": usage.server_rss_bytes,
        "start_s": record.start_s,
        "stop_s": record.stop_s,
        "failed": (cell.failed or 0) / requests if requests else None,
        **{f"{part}_s": getattr(parts, f"{part}_s") for part in part_names},
        "held_s": cell.held_s,
    }


def pairs_of(
    cells: Iterable[CellResult], group: Group
) -> tuple[list[tuple[CellResult, CellResult]], list[tuple[str, CellResult]]]:
    """The pairs of valid launches, in order; and the invalid launches of the other pairs, each with
    its side, "A" or "B"."""
    launches = {cell.trial.cell: cell for cell in cells}
    valid, left_out = [], []
    for number in sorted({cell.schedule for cell in launches if cell.schedule}):
        a, b = (launches.get(replace(side, schedule=number)) for side in (group.a, group.b))
        if a is None or b is None:
            continue
        sides = zip(SIDES, (a, b), strict=True)
        invalid = [(side, launch) for side, launch in sides if launch.verdict == "invalid"]
        left_out += invalid
        if not invalid:
            valid.append((a, b))
    return valid, left_out


def compare_groups(run: Run) -> list[GroupChanges]:
    """The changes in every group, by the pairs stored so far."""
    request, comparisons = CompareRequest.of(run.plan), []
    cells = report_of(run, trial_data(run, keep=True)).cells
    for group, apart in zip(request.groups, settings_apart(request.groups), strict=True):
        pairs, left_out = pairs_of(cells, group)
        metrics: list[Pair] = [(launch_metrics(run, a), launch_metrics(run, b)) for a, b in pairs]
        metric_changes = changes(metrics, request.at_least)
        comparisons.append(
            GroupChanges(
                group=group,
                pairs=pairs[: pairs_at_last_look(len(pairs)) or len(pairs)],
                changes=metric_changes,
                left_out=left_out,
                outcomes=options.outcomes(request.limits, metric_changes),
                apart=apart,
                pairs_made=len(pairs),
            )
        )
    return comparisons


def next_look_s(run: Run, groups: Sequence[GroupChanges]) -> float | None:
    """Predicted seconds until the next look at undecided groups, from the launches so far; once
    some pairs for that look have been made, until the next pair. None if no group needs more."""
    undecided = [group for group in groups if group.needs_more_pairs]
    if not undecided:
        return None
    if any(group.pairs_made > 1 and group.pairs_made not in LOOKS for group in undecided):
        pairs = 1
    else:
        pairs = max((group.next_look or 0) - group.pairs_made for group in undecided)
    launches_s = [used_s(record) for record in run.records.values()]
    return 2 * pairs * len(undecided) * fmean(launches_s) if launches_s else 0.0
