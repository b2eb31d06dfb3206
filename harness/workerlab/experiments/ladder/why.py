"""Two questions of the ladder whose answers surprise, answered from what was counted.

Redis: what a hit costs (round trip, and making a value of bytes again) is weighed against what the
storage access costs that it saves, both for a single user, who waits for nobody; and the CPU that a
request costs the app with each, which is what throughput is made of where the app is the limit.

sync: a closed loop of N users has a mean response time of N / X whatever the class (Little 1961),
so the mean says nothing that requests/s do not. What a class decides is how it is spread: one
request at a time, in order of arrival, makes all wait alike.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from workerlab.experiments.document import answer
from workerlab.experiments.ladder.configurations import differences
from workerlab.experiments.ladder.steps import Ladder, Step
from workerlab.model import Finding
from workerlab.numbers.intervals import TRIALS, Ratio, ratio

LITTLE = 0.8  # of the requests/s before: who loses less than a fifth loses little
MOVED = 1.1  # times the other's factor: one moved more than the other
ALIKE = 1.25  # times the other's factor at most: neither moved much more
MOST_LAUNCHES = 100  # that are worth naming
HIT = ("redis", "serialise")
MISS = ("pool", "storage")

Sides = tuple[list[float], list[float]]  # of the launches after and before

_answer = partial(answer, "ladder")


def _around(steps: Sequence[Step], setting: str) -> tuple[Step, Step] | None:
    """Two steps in a row that differ in this setting alone."""
    for before, after in pairwise(steps):
        if differences(before.configuration, after.configuration) == (setting,):
            return before, after
    return None


def _cpu(pair: tuple[Step, Step], code: str) -> tuple[Finding | None, tuple[Finding, ...]]:
    """The CPU that a request costs the app on both sides, with its evidence; None: not known."""
    cpu = dict(zip(("before_s", "after_s"), (step.app_cpu_s for step in pair), strict=True))
    if None in cpu.values():
        return None, ()
    return Finding(code, cpu), tuple(
        Finding("ladder.cores", {
            "load": step.load.text, "configuration": step.configuration.text, "rps": step.rps,
            "cores": step.mean("usage.server_cores"),
        })
        for step in pair
    )  # fmt: skip


def why_redis(ladder: Ladder) -> Finding:
    pair = _around(ladder.conclusive, "cache")
    if pair is None:
        return _answer("redis", "redis.unmeasured")
    alone = [step for one in pair if (step := ladder.with_one_user(one))]
    hit, evidence = _hit(*alone) if len(alone) == 2 else (Finding("ladder.hit.unmeasured"), ())
    cpu, cores = _cpu(pair, "ladder.redis.cpu")
    lost = pair[1].ratio
    values = {"cost": lost and _cost(lost), "hit": hit, "cpu": cpu}
    return _answer("redis", "redis", values, (*evidence, *cores))


def _cost(lost: Ratio) -> Finding:
    """Of losing Redis, in requests/s."""
    if lost.differs is None:
        return Finding("ladder.redis.few", {"trials": TRIALS})
    size = "gain" if lost.value >= 1 else "little" if lost.value >= LITTLE else "much"
    values = {"ratio": lost.value, "share": abs(1 - lost.value)}
    return Finding(f"ladder.redis.{size if lost.differs else 'none'}", values)


def _hit(cached: Step, stored: Step) -> tuple[Finding, tuple[Finding, ...]]:
    """What a hit costs a single user, and what it saves."""
    hit_s, miss_s = _sum(cached, HIT), _sum(stored, MISS)
    if hit_s is None or miss_s is None:
        return Finding("ladder.hit.no_metrics"), ()
    values = {
        "hit_s": hit_s,
        "miss_s": miss_s,
        "difference_s": abs(miss_s - hit_s),
        "response_s": stored.mean("breakdown.response_s") or None,
    }
    code = "ladder.hit.saves" if miss_s > hit_s else "ladder.hit.costs"
    return Finding(code, values), (_spent(cached), _spent(stored))


def _sum(step: Step, names: Sequence[str]) -> float | None:
    known = [value for name in names if (value := step.metric("spent_s", name)) is not None]
    return sum(known) if known else None


def _spent(step: Step) -> Finding:
    spent = {f"{name}_s": step.metric("spent_s", name) for name in (*HIT, *MISS)}
    values = {"load": step.load.text, "configuration": step.configuration.text}
    return Finding("ladder.spent", {**values, **spent})


def why_sync(ladder: Ladder) -> Finding:
    pair = _around(ladder.conclusive, "worker_class")
    if pair is None:
        return _answer("sync", "sync.unmeasured")
    before, after = pair
    p50 = [step.mean("response.p50") or 0.0 for step in pair]
    p95 = [step.mean("response.p95") or 0.0 for step in pair]
    if not all((*p50, *p95)):
        return _answer("sync", "sync.no_percentiles")
    late, early = ([cell.response.p95 or 0.0 for cell in step.cells] for step in (after, before))
    tails = ratio(late, early)
    if after.ratio is None or after.ratio.differs is None or tails.differs is None:
        return _answer("sync", "sync.few", {"trials": TRIALS}, map(_response, pair))
    spread = [high / middle for high, middle in zip(p95, p50, strict=True)]
    cpu, cores = _cpu(pair, "ladder.sync.cpu")
    values = {
        "moved": _moved(tails, after.ratio)
        or _undecided((late, early), (after.rates, before.rates)),
        "chance": None if after.ratio.differs else Finding("ladder.sync.chance"),
        "cpu": cpu,
        "users": after.load.users,
        "mean_async_s": before.load.users / before.rps,
        "mean_sync_s": after.load.users / after.rps,
        "spread_async": spread[0],
        "spread_sync": spread[1],
        "order": Finding(f"ladder.sync.order.{'shown' if spread[1] < spread[0] else 'hidden'}"),
    }
    return _answer("sync", "sync", values, (*cores, *map(_response, pair)))


def _undecided(p95s: Sides, rates: Sides) -> Finding:
    """How many launches of each step would decide it."""
    values: dict[str, object] = {}
    for name, sides in (("p95", p95s), ("rps", rates)):
        now = ratio(*sides)
        values |= {name: now.value, f"{name}_low": now.low, f"{name}_high": now.high}
    more = range(min(map(len, rates)) + 1, MOST_LAUNCHES + 1)
    enough = (n for n in more if _moved(ratio(*p95s, count=n), ratio(*rates, count=n)))
    values["launches"] = next(enough, None)
    values["most"] = None if values["launches"] else MOST_LAUNCHES
    return Finding("ladder.sync.moved.undecided", values)


def _moved(p95: Ratio, rps: Ratio) -> Finding | None:
    """`p95`, `rps`: sync over async. Compared as factors, whichever way they go: one moved more
    where the least that its interval allows is more than the most that the other's does. None where
    the intervals do not decide that."""
    (least_p95, most_p95), (least_rps, most_rps) = map(_factors, (p95, rps))
    if least_p95 >= MOVED * most_rps:
        more = "p95"
    elif least_rps >= MOVED * most_p95:
        more = "rps"
    elif max(most_p95 / least_rps, most_rps / least_p95) <= ALIKE:
        more = "neither"
    else:
        return None
    return Finding(f"ladder.sync.moved.{more}", {"p95": p95.value, "rps": rps.value})


def _factors(of: Ratio) -> tuple[float, float]:
    """The least and the most that its interval allows, each as a factor of 1 and more."""
    low, high = of.low or of.value, of.high or of.value
    ends = sorted(max(one, 1 / one) for one in (low, high))
    return (1.0 if low <= 1 <= high else ends[0]), ends[1]


def _response(step: Step) -> Finding:
    times = {f"{name}_s": step.mean(f"response.{name}") for name in ("mean", "p50", "p95")}
    return Finding("ladder.response", {"configuration": step.configuration.text, **times})
