"""Which trials of a plan run side by side. Pure.

    cores of a trial = requests/s * CPU of a request (server and load tool)
                     + workers that wake up by themselves + the observer

Requests that sleep leave the cores idle, so such trials do not feel each other as long as all of
them together use less than a third of the cores (`room`).

Of an app of the user's nobody knows what a request takes before it was seen. Its trials run one at
a time unless `--jobs` says otherwise; then the first one runs alone, and the others by what that
one used. A trial that needs more, or of which it is not known, runs alone.

The longest begin first, so that none is left over at the end; repeated ones keep their random
order. Those at a rate come after all of the closed loop: their rate may be a share of what these
find.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from statistics import fmean
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from workerlab.experiments.room import Room, span_s
from workerlab.model import App, Cell, Observations, Plan, Record, Trial
from workerlab.plan import LEAST_LONE_S, load_for
from workerlab.server.worker_classes import class_named, configured_slots

PART = 1 / 3  # of the cores
# CPU seconds of a request under Gunicorn: 0.3 (of an event loop that is awake) to 0.9 ms (gthread);
# and of the load tools of which that is known
REQUEST_S = 0.001
TOOLS_S = {"ab": 0.0002, "wrk": 0.0002, "fast": 0.0006}
WORKER_CORES = 0.008  # of an event loop that has nothing to do: its heartbeat
OBSERVER_CORES = 0.03
# The lab's apps that only sleep, where nobody tells them to compute
SLEEPERS = frozenset(
    f"apps.{name}"
    for name in ("sleep_wsgi", "sleep_asgi", "sleep_flask", "blocking_asgi", "imported_sleep")
)
CPU_ENV = "WORKERLAB_CPU"


def sleeps(app: App) -> bool:
    """Whether it is known that its requests do nothing but sleep."""
    asked = parse_qs(urlsplit(app.path).query)
    computes = "cpu" in asked or CPU_ENV in dict(app.env)
    return app.target.partition(":")[0] in SLEEPERS and bool(app.sleep_s) and not computes


class Used(Struct, frozen=True):
    """What a lone request of an app takes, seconds, and its CPU, load tool included."""

    lone_s: float
    cpu_s: float


class Jobs:
    """Learns what requests take, and says which trials may run together. `rps_of`: the rate of one
    of the open model; None of the closed loop, and where that is not known. `drops_known`: the
    kernel says of each listening socket what it dropped."""

    def __init__(
        self,
        plan: Plan,
        cores: int,
        rps_of: Callable[[Trial], float | None],
        *,
        drops_known: bool,
    ) -> None:
        self._plan, self._rps_of, self._drops_known = plan, rps_of, drops_known
        self._used: dict[tuple[str, str], Used] = {}
        self.most_cores = PART * cores

    def learn(self, one: Trial, record: Record, seen: Observations) -> None:
        """What requests of an app took that ran alone, where nobody knew."""
        server_s = [used for sample in seen.processes if (used := sample.server_cpu_s) is not None]
        tool_s, requests = record.tool_cpu_s, record.planned_requests
        if not record.fault and record.alone_s and server_s and requests and tool_s is not None:
            cpu_s = (server_s[-1] + tool_s) / requests
            self._used[_served(one.cell)] = Used(fmean(record.alone_s), cpu_s)

    def cores(self, one: Trial) -> float | None:
        """That its load keeps busy; None where it must run alone, or nobody knows."""
        cell, plan = one.cell, self._plan
        server = cell.server
        special = server.null or cell.inside or cell.load or plan.load_hosts or server.instances > 1
        used = self._request(cell)
        if plan.jobs == 1 or special or used is None:
            return None
        rps = self._rps_of(one)
        if rps is None:
            slots = configured_slots(server)
            together = cell.concurrency if slots is None else min(cell.concurrency, slots)
            rps = together / max(used.lone_s, LEAST_LONE_S)
        load = load_for(plan, cell, used.lone_s, rps if cell.rate else None)
        if load.drops and not self._drops_known:
            return None
        loops = server.workers if class_named(server.worker_class).loop else 0
        return rps * used.cpu_s + loops * WORKER_CORES + OBSERVER_CORES

    def _request(self, cell: Cell) -> Used | None:
        app, tool_s = cell.server.app, TOOLS_S.get(cell.tool)
        if tool_s is None:
            return None
        if sleeps(app):
            return Used(app.sleep_s or 0.0, REQUEST_S + tool_s)
        return self._used.get(_served(cell))

    def room(self) -> Room:
        return Room(self.most_cores, self._plan.jobs)

    def shares(self, one: Trial) -> bool:
        """Whether it leaves room for another one of its kind."""
        return (cores := self.cores(one)) is not None and 2 * cores <= self.most_cores

    def next(
        self, left: Sequence[Trial], predicted_s: Callable[[Trial], float | None]
    ) -> tuple[list[Trial], list[Trial]]:
        """Those that run now, in the order to begin, and the rest; one of them runs alone."""
        if self._plan.jobs == 1:
            return [left[0]], list(left[1:])
        opened = left[0].cell.rate is not None
        stage = list(takewhile(lambda one: (one.cell.rate is not None) == opened, left))
        if self._plan.trials > 1:
            batch = list(takewhile(self.shares, stage))
        else:
            batch = [one for one in stage if self.shares(one)]
            batch.sort(key=lambda one: predicted_s(one) or 0.0, reverse=True)
        batch = batch or stage[:1]
        return batch, [one for one in left if one not in batch]

    def left_s(
        self,
        predicted_s: Callable[[Trial], float | None],
        todo: Sequence[Trial],
        so_far_s: Mapping[str, float],
    ) -> float | None:
        """Until all are done, of which some run for so long by now; None as long as nobody can
        know. Two that are to run alone are not begun before the other has ended."""
        total_s, left = 0.0, list(todo)
        while left:
            batch, left = self.next(left, predicted_s)
            spans = list[tuple[str, float, float]]()
            for one in batch:
                if (took_s := predicted_s(one)) is None:
                    return None
                took_s = max(0.0, took_s - so_far_s.get(one.key, 0.0))
                spans.append((one.key, took_s, self.cores(one) or 0.0))
            total_s += span_s(self.room(), spans, so_far_s)
        return total_s


def _served(cell: Cell) -> tuple[str, str]:
    """Of what requests take the same."""
    return cell.server.worker_class, cell.server.app.target
