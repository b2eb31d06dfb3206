"""Decides which trials of a plan run in parallel, and predicts how long they take.

    cores of a trial = requests/s * CPU per request (server and load tool)
                     + idle wake-ups of workers + the observer

Requests that sleep leave the cores idle. Their trials do not affect each other as long as they use
less than a third of the cores together (`CpuBudget`).

The CPU per request of a user's app is unknown at first, so its trials run one at a time by default.
With `--jobs`, the first trial of each worker class runs alone, and its CPU per request is used to
plan the others. A trial runs alone if two like it would not fit, or if its CPU is unknown.

The longest trials begin first, to avoid a long one at the end; repeated trials keep their random
order. Open cells come after all closed ones, because their rate may be a share of the capacity that
the closed ones measure.

Starting a server also takes CPU. While loads are running, the budget spreads that cost over the
next seconds, and the next server waits if it does not fit.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from statistics import fmean
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from workerlab.durations import predicted_s
from workerlab.load.registry import tool_named
from workerlab.model.evidence import Observations, Record
from workerlab.model.plan import App, Cell, Plan, Trial
from workerlab.plan import MIN_LONE_S, load_for
from workerlab.server.worker_classes import class_named, configured_slots

MAX_JOBS = 10  # one process observes all trials, in threads that share an interpreter
START_CPU_S = 0.9  # for starting and stopping a server
START_SPREAD_S = 6.0  # the time over which the budget spreads that CPU
START_INTERVAL_S = 0.5  # between the starts of servers; only for predictions


class CpuBudget:
    """Limits the running trials to `max_cores` in total and `max_jobs` trials (None: MAX_JOBS).
    Times are seconds of any clock, but always the same one."""

    def __init__(self, max_cores: float, max_jobs: int | None) -> None:
        self._max_cores, self._max_jobs = max_cores, max_jobs
        self._cores_by_trial: dict[str, float] = {}
        self._starts: list[tuple[float, float]] = []  # (until, cores)

    def fits(self, cores: float, at_s: float, *, loaded: bool) -> bool:
        """Whether another trial fits. `loaded`: whether a start would disturb a running load."""
        if not self._cores_by_trial:
            return True
        if self.full:
            return False
        used_cores = sum(self._cores_by_trial.values()) + cores
        if loaded:
            starts = sum(start_cores for until_s, start_cores in self._starts if until_s > at_s)
            used_cores += starts + START_CPU_S / START_SPREAD_S
        return used_cores <= self._max_cores

    @property
    def full(self) -> bool:
        """Whether no other trial fits, however few cores it needs."""
        return len(self._cores_by_trial) >= min(self._max_jobs or MAX_JOBS, MAX_JOBS)

    def enter(self, key: str, cores: float, at_s: float, *, loaded: bool) -> None:
        self._cores_by_trial[key] = cores
        if loaded:
            self._starts.append((at_s + START_SPREAD_S, START_CPU_S / START_SPREAD_S))

    def leave(self, key: str) -> None:
        del self._cores_by_trial[key]

    def release_times_s(self, at_s: float) -> list[float]:
        """The times after `at_s` when a start no longer counts, so that more cores are free."""
        return [until_s for until_s, _ in self._starts if until_s > at_s]


def batch_duration_s(
    budget: CpuBudget,
    todo: Sequence[tuple[str, float, float]],
    running: Collection[str] = (),
    start_interval_s: float = START_INTERVAL_S,
) -> float:
    """The predicted seconds until all these trials have ended, if they begin in order, each as soon
    as it fits. `todo`: key, seconds and cores of each trial; `running`: keys of those that have
    started; `start_interval_s`: from the start of a server to the next one."""
    waiting, ends, now_s = list(todo), dict[str, float](), 0.0
    while waiting or ends:
        loaded, new_trials = bool(ends), list[tuple[str, float, float]]()
        for entry in waiting:
            if budget.full:
                break
            key, _, cores = entry
            if budget.fits(cores, now_s, loaded=loaded):
                budget.enter(key, cores, now_s, loaded=loaded)
                new_trials.append(entry)
        waiting = [entry for entry in waiting if entry not in new_trials]
        starts = [key for key, _, _ in new_trials if key not in running]
        startup_s = start_interval_s * max(0, len(starts) - 1)  # until the last server is up
        for key, seconds, _ in new_trials:
            ends[key] = now_s + seconds + (startup_s if key in starts else 0.0)
        now_s = min((*ends.values(), *(budget.release_times_s(now_s) if waiting else ())))
        for key in [key for key, end_s in ends.items() if end_s <= now_s]:
            budget.leave(key)
            del ends[key]
    return now_s


MAX_CORES_SHARE = 1 / 3  # of the cores, for trials in parallel
# CPU seconds per request under Gunicorn: 0.3 ms (a busy event loop) to 0.9 ms (gthread)
REQUEST_CPU_S = 0.001
IDLE_LOOP_CORES = 0.008  # used by the heartbeat of an idle event loop
OBSERVER_CORES = 0.03
# Bundled apps that only sleep unless configured to compute
SLEEP_APPS = frozenset(
    f"apps.{name}"
    for name in ("sleep_wsgi", "sleep_asgi", "sleep_flask", "blocking_asgi", "imported_sleep")
)
CPU_ENV = "WORKERLAB_CPU"  # CPU milliseconds per request of the bundled apps


def only_sleeps(app: App) -> bool:
    """Whether the app's requests are known to only sleep."""
    query = parse_qs(urlsplit(app.path).query)
    computes = "cpu" in query or CPU_ENV in dict(app.env)
    return app.target.partition(":")[0] in SLEEP_APPS and bool(app.sleep_s) and not computes


class RequestCost(Struct, frozen=True):
    """The cost of one request in seconds. `lone_s`: response time of a lone request; `cpu_s`: its
    CPU time, including the load tool's."""

    lone_s: float
    cpu_s: float


class JobPlanner:
    """Decides which trials may run in parallel, and predicts their durations, from the costs of
    requests in the records so far or the nominal sleep. `rps_of`: the rate of an open trial; None
    if closed or unknown. `drops_known`: whether the kernel reports drops per listening socket."""

    start_interval_s = START_INTERVAL_S

    def __init__(
        self,
        plan: Plan,
        cores: int,
        rps_of: Callable[[Trial], float | None],
        *,
        drops_known: bool,
    ) -> None:
        self._plan, self._rps_of, self._drops_known = plan, rps_of, drops_known
        self._costs: dict[tuple[str, str], RequestCost] = {}
        self._lone_s: dict[tuple[str, str], float] = {}  # by server name and app
        self.max_cores = MAX_CORES_SHARE * cores

    def on_result(
        self, trial: Trial, record: Record, observations: Callable[[], Observations]
    ) -> None:
        """Store the response time of lone requests, and the cost of an app's requests: the CPU time
        of a trial divided by its planned requests."""
        server, tool_s, requests = trial.cell.server, record.tool_cpu_s, record.planned_requests
        if not record.alone_s:
            return
        lone_s = fmean(record.alone_s)
        self._lone_s[server.name, server.app.target] = lone_s
        if self._plan.jobs == 1 or record.fault or not requests or tool_s is None:
            return
        samples = observations().processes
        server_s = [used for sample in samples if (used := sample.server_cpu_s) is not None]
        if server_s:
            cpu_s = (server_s[-1] + tool_s) / requests
            self._costs[_cost_key(trial.cell)] = RequestCost(lone_s, cpu_s)

    def predict(self, trial: Trial) -> float | None:
        """The predicted seconds of the trial; None while its response time is unknown."""
        server = trial.cell.server
        lone_s = self._lone_s.get((server.name, server.app.target), server.app.sleep_s)
        if trial.cell.load is not None:
            lone_s = 0.0  # the duration of a fixed load does not depend on it
        if lone_s is None:
            return None
        return predicted_s(self._plan, trial.cell, lone_s)

    def cores(self, trial: Trial) -> float | None:
        """The cores that the trial keeps busy under load; None if it must run alone, or if the cost
        of its requests is unknown."""
        cell, plan = trial.cell, self._plan
        server = cell.server
        runs_alone = (
            server.null or cell.inside or cell.load or plan.load_hosts or server.instances > 1
        )
        cost = self._request_cost(cell)
        if plan.jobs == 1 or runs_alone or cost is None:
            return None
        rps = self._rps_of(trial)
        if rps is None:
            slots = configured_slots(server)
            busy_slots = cell.concurrency if slots is None else min(cell.concurrency, slots)
            rps = busy_slots / max(cost.lone_s, MIN_LONE_S)
        load = load_for(plan, cell, cost.lone_s, rps if cell.rate else None)
        if load.drops and not self._drops_known:
            return None
        loops = server.workers if class_named(server.worker_class).loop else 0
        return rps * cost.cpu_s + loops * IDLE_LOOP_CORES + OBSERVER_CORES

    def _request_cost(self, cell: Cell) -> RequestCost | None:
        app, tool_s = cell.server.app, tool_named(cell.tool).REQUEST_CPU_S
        if tool_s is None:
            return None
        if only_sleeps(app):
            return RequestCost(app.sleep_s or 0.0, REQUEST_CPU_S + tool_s)
        return self._costs.get(_cost_key(cell))

    def budget(self) -> CpuBudget:
        """A new budget, with nothing running."""
        return CpuBudget(self.max_cores, self._plan.jobs)

    def can_share(self, trial: Trial) -> bool:
        """Whether two trials like this one would fit."""
        return (cores := self.cores(trial)) is not None and 2 * cores <= self.max_cores

    def next_batch(self, remaining: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
        """The trials to run now, in order, and the rest; a batch of one runs alone."""
        if self._plan.jobs == 1:
            return [remaining[0]], list(remaining[1:])
        is_open = remaining[0].cell.rate is not None
        stage = list(takewhile(lambda trial: (trial.cell.rate is not None) == is_open, remaining))
        if self._plan.trials > 1:
            batch = list(takewhile(self.can_share, stage))
        else:
            batch = [trial for trial in stage if self.can_share(trial)]
            batch.sort(key=lambda trial: self.predict(trial) or 0.0, reverse=True)
        batch = batch or stage[:1]
        return batch, [trial for trial in remaining if trial not in batch]

    def left_s(
        self,
        predict: Callable[[Trial], float | None],
        todo: Sequence[Trial],
        so_far_s: Mapping[str, float],
    ) -> float | None:
        """The predicted seconds until all trials are done; None while unknown. `predict`: the
        duration of a trial; `so_far_s`: how long each running trial has been running, by key."""
        total_s, remaining = 0.0, list(todo)
        while remaining:
            batch, remaining = self.next_batch(remaining)
            durations = list[tuple[Trial, float]]()
            for trial in batch:
                if (trial_s := predict(trial)) is None:
                    return None
                durations.append((trial, max(0.0, trial_s - so_far_s.get(trial.key, 0.0))))
            if len(batch) == 1:  # no simulation: the display calls this four times a second
                total_s += durations[0][1]
                continue
            jobs = [(trial.key, trial_s, self.cores(trial) or 0.0) for trial, trial_s in durations]
            total_s += batch_duration_s(self.budget(), jobs, so_far_s, self.start_interval_s)
        return total_s


def _cost_key(cell: Cell) -> tuple[str, str]:
    """The key of requests with the same cost: worker class and app."""
    return cell.server.worker_class, cell.server.app.target
