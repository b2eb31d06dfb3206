"""Mean waiting times of the steady state, to compare with simulated or measured ones.

- One slot, Poisson arrivals: Pollaczek and Khinchine, exact for any service times.
- Several slots, Poisson arrivals, exponential service times: Erlang C, exact.
- Several slots otherwise: Allen and Cunneen's approximation, Erlang C's waiting times the mean of
  the two squared coefficients of variation (A. O. Allen, "Probability, Statistics and Queueing
  Theory", 2nd ed., 1990, 5.4).

A load of 45 s does not reach the steady state, and stays far from it at 90 % of the capacity: the
theory gives a long-run mean.
"""


def closed_bound(
    workers: int, slots: int | None, cores: float, wait_s: float, cpu_s: float
) -> float | None:
    """Upper bound of the throughput in requests per second (Denning & Buzen 1978), by the slots and
    by workers that compute on a core each. Times wait_s + cpu_s it is the knee of a closed loop.
    None: no bound."""
    bounds = []
    if slots is not None and wait_s + cpu_s > 0:
        bounds.append(slots / (wait_s + cpu_s))
    if cpu_s > 0:
        bounds.append(min(cores, workers) / cpu_s)
    return min(bounds, default=None)


def pollaczek_khinchine(rate_rps: float, mean_s: float, square_s2: float) -> float:
    """Mean waiting time of M/G/1 in seconds, from the mean and mean square of the service times.
    Raises ValueError if there is no steady state."""
    busy = _busy(rate_rps, mean_s, 1)
    return rate_rps * square_s2 / (2 * (1 - busy))


def erlang_c(rate_rps: float, mean_s: float, slots: int) -> float:
    """Probability that a request of M/M/c waits, by the recursion of Erlang B."""
    busy = _busy(rate_rps, mean_s, slots)
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = busy * slots * blocked / (number + busy * slots * blocked)
    return blocked / (1 - busy * (1 - blocked))


def allen_cunneen(
    rate_rps: float, mean_s: float, square_s2: float, slots: int, arrivals_cv2: float = 1.0
) -> float:
    """Approximate mean waiting time of G/G/c in seconds; exact for M/M/c and M/G/1. `arrivals_cv2`:
    squared coefficient of variation of the times between arrivals, 1 for a Poisson process."""
    busy = _busy(rate_rps, mean_s, slots)
    service_cv2 = max(0.0, square_s2 / mean_s**2 - 1)
    exponential_s = erlang_c(rate_rps, mean_s, slots) * mean_s / (slots * (1 - busy))
    return exponential_s * (arrivals_cv2 + service_cv2) / 2


def _busy(rate_rps: float, mean_s: float, slots: int) -> float:
    busy = rate_rps * mean_s / slots
    if not 0 <= busy < 1:
        raise ValueError(f"no steady state: {busy:.3g} of the slots would be busy")
    return busy
