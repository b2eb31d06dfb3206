"""The waiting times of requests with known service times: one queue, first come, first served.

The recursion of Kiefer and Wolfowitz ("On the theory of queues with many servers", Trans. AMS 78,
1955) for G/G/c: a request is served by the slot that is free first. They keep the remaining work of
each slot, in ascending order; a heap of the times at which the slots become free is the same
vector, shifted by the clock, and costs O(log c) per request. For one slot it is the recursion of
Lindley ("The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952).

It assumes nothing about the arrivals: given the schedule of a load, it returns the waits of that
load, not a long-run mean. Steady-state formulas follow it.
"""

import heapq
from collections.abc import Iterable, Iterator


def waits(
    arrivals_s: Iterable[float], services_s: Iterable[float], slots: int = 1
) -> Iterator[float]:
    """Seconds that each request waits for a slot, in order of arrival. `arrivals_s`: moments in
    ascending order. Raises ValueError if one iterable is shorter."""
    free_s = [float("-inf")] * slots
    for arrival_s, service_s in zip(arrivals_s, services_s, strict=True):
        start_s = max(arrival_s, free_s[0])
        yield start_s - arrival_s
        heapq.heapreplace(free_s, start_s + service_s)


def erlang_c(rate_rps: float, service_s: float, slots: int) -> float:
    """Probability that a request of M/M/c waits, by the recursion of Erlang B. Raises ValueError if
    there is no steady state."""
    utilisation = _utilisation(rate_rps, service_s, slots)
    offered = utilisation * slots  # erlangs
    blocked = 1.0
    for servers in range(1, slots + 1):
        blocked = offered * blocked / (servers + offered * blocked)
    return blocked / (1 - utilisation * (1 - blocked))


def allen_cunneen(
    rate_rps: float,
    service_s: float,
    service_square_s2: float,
    slots: int,
    arrivals_cv2: float = 1.0,
) -> float:
    """Approximate mean waiting time of G/G/c in seconds: Erlang C's, times the mean of the squared
    coefficients of variation of arrivals (1: Poisson) and service; exact for M/M/c and M/G/1. A
    load of a minute or less does not reach this steady state, and stays far from it at 90 % of
    the capacity. `service_s`, `service_square_s2`: mean service time, and mean of its square."""
    utilisation = _utilisation(rate_rps, service_s, slots)
    service_cv2 = max(0.0, service_square_s2 / service_s**2 - 1)
    probability = erlang_c(rate_rps, service_s, slots)
    exponential_s = probability * service_s / (slots * (1 - utilisation))
    return exponential_s * (arrivals_cv2 + service_cv2) / 2


def _utilisation(rate_rps: float, service_s: float, slots: int) -> float:
    utilisation = rate_rps * service_s / slots
    if not 0 <= utilisation < 1:
        raise ValueError(f"no steady state: {utilisation:.3g} of the slots would be busy")
    return utilisation
