"""A run of `compare` as pairs of launches: what each side measured, and what that shows so far."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec
from workerlab.analysis.cell_targets import load_level
from workerlab.analysis.comparison import (
    LOOKS,
    METRICS,
    Change,
    Launch,
    Pair,
    changes,
    decided,
    looks_so_far,
)
from workerlab.experiments.budget import used_s
from workerlab.experiments.compare import gate
from workerlab.experiments.reading import read_before, report_of
from workerlab.model import Cell, CellResult, Plan, Record
from workerlab.numbers.formats import fill
from workerlab.report.naming import KEEPALIVE, load_tool, setting, varying
from workerlab.run_store import Run

SIDES = ("a", "b")
# Once per launch: they differ far more than what many requests show, and nobody waits for them
BESIDE = ("start_s", "stop_s")
MEASURED = tuple(one.name for one in METRICS if one.name not in BESIDE)


class Group(Struct, frozen=True):
    """A cell of each side that agree in class and load."""

    a: Cell
    b: Cell


class Asked(Struct, frozen=True):
    """What the user asked for; the Plan's details."""

    groups: tuple[Group, ...]
    at_least: float
    budget_s: float
    words: tuple[str, str]  # of --a and --b
    limits: str = ""  # of --fail-if
    strict: bool = False
    junit: str = ""  # where the limits shall be written

    @classmethod
    def of(cls, plan: Plan) -> "Asked":
        return codec.convert(plan.details, cls)


class Compared(NamedTuple):
    """A group, and what its pairs show as of the last look. `left_out`: invalid launches, each with
    its side, "A" or "B"; `made`: pairs, those since then too; `launches`: valid ones of A and of B,
    where they are no pairs."""

    group: Group
    pairs: Sequence[tuple[CellResult, CellResult]]
    changes: Sequence[Change]
    left_out: Sequence[tuple[str, CellResult]]
    outcomes: Sequence[tuple[gate.Limit, gate.Outcome]] = ()  # of --fail-if
    apart: tuple[str, ...] = ()  # from other groups of its class and load
    made: int = 0
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
        """Whether nothing is left to find out, or nothing can be: a side that never runs. Whoever
        sets limits asks for no more than these."""
        if len(self.left_out) >= GIVE_UP and not self.pairs:
            return True
        if self.outcomes:
            return all(outcome != "inconclusive" for _, outcome in self.outcomes)
        return decided(self.changes, MEASURED)

    @property
    def next_look(self) -> int | None:
        """After so many pairs."""
        return next((look for look in LOOKS if look > self.made), None)

    @property
    def goes_on(self) -> bool:
        return not self.decided and self.next_look is not None


GIVE_UP = 3  # pairs


def apart(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """What tells each group from others of the same class and load: settings that both sides have,
    and how they are loaded."""
    settings = varying(one.a.server for one in groups)
    tools = len({(one.a.tool, one.a.processes) for one in groups}) > 1
    kept = len({one.a.keepalive for one in groups}) > 1
    found = []
    for cell in (one.a for one in groups):
        mine = [name for name, of in settings.items() if cell.server.worker_class in of]
        said = [setting(name, getattr(cell.server, name)) for name in mine]
        if tools:
            said.append(load_tool(cell))
        if kept and cell.keepalive:
            said.append(KEEPALIVE)
        found.append(tuple(said))
    return found


def launch(cell: CellResult, record: Record) -> Launch:
    """The metrics of one launch, by name; what is not known is None."""
    requests, usage, parts = cell.requests or 0, cell.usage, cell.breakdown
    busy = usage.server_cores
    of_parts = ("connect", "accept_queue", "in_worker", "service", "transfer", "response")
    return {
        "throughput_rps": cell.throughput_rps,
        "response_p50_s": cell.response.p50,
        "response_p95_s": cell.response.p95,
        "cpu_s": busy * cell.load_s / requests if busy and cell.load_s and requests else None,
        "memory_bytes": usage.server_rss_bytes,
        "start_s": record.start_s,
        "stop_s": record.stop_s,
        "failed": (cell.failed or 0) / requests if requests else None,
        **{f"{part}_s": getattr(parts, f"{part}_s") for part in of_parts},
        "held_s": cell.held_s,
    }


def pairs_of(
    cells: Iterable[CellResult], group: Group
) -> tuple[list[tuple[CellResult, CellResult]], list[tuple[str, CellResult]]]:
    """Those whose launches are both valid, in order; and what is invalid of the others, with its
    side."""
    sides: Mapping[str, dict[int, CellResult]] = {which: {} for which in SIDES}
    for cell in cells:
        asked = replace(cell.trial.cell, schedule=None)
        for which, own in zip(SIDES, (group.a, group.b), strict=True):
            if asked == own:
                sides[which][cell.trial.cell.schedule or 0] = cell
    whole, left_out = [], []
    for number in sorted(sides["a"].keys() & sides["b"].keys()):
        both = (sides["a"][number], sides["b"][number])
        if invalid := [
            pair for pair in zip("AB", both, strict=True) if pair[1].verdict == "invalid"
        ]:
            left_out += invalid
        else:
            whole.append(both)
    return whole, left_out


def compared(run: Run) -> list[Compared]:
    """Every group, as of the pairs on file."""
    asked, cells = Asked.of(run.plan), report_of(run, known=read_before(run)).cells
    limits, found = gate.parse(asked.limits) if asked.limits else (), []
    for group, apart_by in zip(asked.groups, apart(asked.groups), strict=True):
        pairs, left_out = pairs_of(cells, group)
        seen: list[Pair] = [(_launch(run, a), _launch(run, b)) for a, b in pairs]
        known = changes(seen, asked.at_least)
        outcomes = [(limit, gate.judge(limit, known)) for limit in limits]
        shown = pairs[: looks_so_far(len(pairs)) or len(pairs)]
        found.append(Compared(group, shown, known, left_out, outcomes, apart_by, len(pairs)))
    return found


def _launch(run: Run, cell: CellResult) -> Launch:
    return launch(cell, run.records[cell.trial.key])


def to_go_on_s(run: Run, groups: Sequence[Compared]) -> float | None:
    """How long it takes until the next look at what is undecided, by the launches so far; once the
    pairs for it have begun, how long the next one takes. None: nothing is left to find out."""
    left = [one for one in groups if one.goes_on]
    if not left:
        return None
    begun = any(one.made > 1 and one.made not in LOOKS for one in left)
    pairs = 1 if begun else max((one.next_look or 0) - one.made for one in left)
    every = [used_s(record) for record in run.records.values()]
    return 2 * pairs * len(left) * sum(every) / len(every) if every else 0.0
