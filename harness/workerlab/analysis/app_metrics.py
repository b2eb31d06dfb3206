"""What a request costs inside an app that counts it, and what the components beside it use.

App metrics and CPU are sums that only grow, so that the difference between the first and the last
sample of the steady window is what was spent in it. Requests are the app's own count: numerator and
denominator come from the same two moments. Sums that shrank were begun anew under the load, and
nothing is known from them. What a name means is said in `observe/app_metrics.py`.
"""

from collections.abc import Mapping, Sequence

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS, per_second
from workerlab.model import AppMetrics, AppMetricsSample, ServiceSample

REQUESTS = "requests"
# How names end: of nanoseconds, and of what a cache was asked and had
SPENT, ASKED, HITS = "_ns", "_asked", "_hits"


def app_metrics(facts: Facts) -> AppMetrics | None:
    """Over the steady window; None where neither app metrics nor components were seen in it."""
    steady, seen = facts.window, facts.seen
    if steady is None:
        return None
    grown = _grown([one for one in seen.app_metrics if steady.contains(one.at_ns)])
    cores = _cores([one for one in seen.services if steady.contains(one.at_ns)])
    requests = grown.pop(REQUESTS, 0)
    if not requests:
        return AppMetrics(0, {}, {}, {}, cores) if cores else None
    return AppMetrics(
        requests=requests,
        per_request={n: v / requests for n, v in grown.items() if not n.endswith(SPENT)},
        spent_s={
            name.removesuffix(SPENT): value / NS / requests
            for name, value in grown.items()
            if name.endswith(SPENT)
        },
        hit_ratio={
            cache: grown[cache + HITS] / asked
            for name, asked in grown.items()
            if name.endswith(ASKED) and asked
            if (cache := name.removesuffix(ASKED)) + HITS in grown
        },
        cores=cores,
    )


def _grown(inside: Sequence[AppMetricsSample]) -> dict[str, int]:
    """By name, of all workers together; empty where it was not seen twice."""
    if len(inside) < 2:
        return {}
    first, last = inside[0].totals, inside[-1].totals
    grown = {name: last[name] - first[name] for name in first if name in last}
    return {} if any(value < 0 for value in grown.values()) else grown


def _cores(inside: Sequence[ServiceSample]) -> Mapping[str, float]:
    """CPU seconds per second of each component that was seen twice."""
    names = dict.fromkeys(name for one in inside for name in one.cpu_s)
    rates = {name: per_second((one.at_ns, one.cpu_s.get(name)) for one in inside) for name in names}
    return {name: cores for name, cores in rates.items() if cores is not None}
