"""What a request costs inside an app that counts it, and what the components beside it use.

App metrics and CPU are sums that only grow, so that the difference between the first and the last
sample of the steady window is what was spent in it. Requests are the app's own count: numerator and
denominator come from the same two moments. Sums that shrank were begun anew under the load, and
nothing is known from them. What a name means is said in `observe/app_metrics.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.facts import Facts
from harness.analysis.spans import NS
from harness.analysis.window import Window
from harness.model import AppMetrics, Observations, ServiceSample

REQUESTS = "requests"
# How names end: of nanoseconds, and of what a cache was asked and had
SPENT, ASKED, HITS = "_ns", "_asked", "_hits"


def app_metrics(facts: Facts) -> AppMetrics | None:
    """Over the steady window; None where neither app metrics nor components were seen in it."""
    steady, seen = facts.window, facts.data.observations
    if steady is None:
        return None
    grown = _grown(seen, steady)
    cores = _cores(seen, steady)
    requests = grown.get(REQUESTS, 0)
    if not requests:
        return AppMetrics(0, {}, {}, {}, cores) if cores else None
    counts = {name: n for name, n in grown.items() if name != REQUESTS}
    return AppMetrics(
        requests=requests,
        per_request={n: v / requests for n, v in counts.items() if not n.endswith(SPENT)},
        spent_s={
            name.removesuffix(SPENT): value / NS / requests
            for name, value in counts.items()
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


def _grown(seen: Observations, steady: Window) -> Mapping[str, int]:
    """By name, of all workers together; empty where it was not seen twice."""
    if "app_metrics" in seen.missing:
        return {}
    inside = [one for one in seen.app_metrics if steady.contains(one.at_ns)]
    if len(inside) < 2:
        return {}
    first, last = inside[0].totals, inside[-1].totals
    grown = {name: last[name] - first[name] for name in first if name in last}
    return {} if any(value < 0 for value in grown.values()) else grown


def _cores(seen: Observations, steady: Window) -> Mapping[str, float]:
    """CPU seconds per second of each component that was seen twice."""
    if "services" in seen.missing:
        return {}
    inside: Sequence[ServiceSample] = [one for one in seen.services if steady.contains(one.at_ns)]
    found = {}
    for name in dict.fromkeys(name for one in inside for name in one.cpu_s):
        known = [(one.at_ns, one.cpu_s[name]) for one in inside if name in one.cpu_s]
        (began_ns, before), (ended_ns, after) = known[0], known[-1]
        if ended_ns > began_ns:
            # A process that ended takes its CPU time out of the sum of those that are left
            found[name] = max(0.0, (after - before) * NS / (ended_ns - began_ns))
    return found
