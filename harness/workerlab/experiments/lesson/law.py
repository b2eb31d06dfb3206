"""The law: what queueing theory predicts for a server and a load, and a sentence about it. Pure.

Closed loop (Denning & Buzen 1978): with N clients, C requests served at once and S seconds each,
X = min(N, C) / S requests per second, and each takes R = N / X on average. Above the knee
N* = Xmax S, clients wait. Requests that compute are also limited by the cores, and in a worker by
one core. Random arrivals: R = S + W, with W by Allen and Cunneen's approximation (A. O. Allen,
"Probability, Statistics and Queueing Theory", 2nd ed., 1990, 5.4) for a constant service time. The
queue is L = X W (Little).

Closed loop with clients that give up after T seconds, where R > T: each sends a request per T, so
N / T > X arrive per second. The server serves all of them in turn, including abandoned ones, and
the queue grows. Once its wait exceeds T - S, no request is answered in time.
"""

from __future__ import annotations

from functools import cached_property
from math import sqrt
from typing import Literal

from msgspec import Struct

from workerlab.analysis.knee import max_closed_rps
from workerlab.experiments.lesson.settings import LoadSettings, ServerSettings
from workerlab.finding import Finding, Note
from workerlab.numbers.units import count_text, counted, fill, format_duration
from workerlab.server.worker_classes import configured_slots

# Without a limit, the number of requests in flight is Poisson. It exceeds its mean by this many
# standard deviations 1/30 000 of the time (normal approximation)
RARE_DEVIATIONS = 4
ASYNCIO_BACKLOG = 100  # of a worker that ignores `backlog`: asyncio's own call of listen()
NEGLIGIBLE = 0.001  # waiting, as a share of the service time

Predicted = float | str | None  # a number, the reason why there is none, or None: not applicable


class Law(Struct, frozen=True, dict=True):
    """The prediction for a load. `at_once`: requests in the app at the same time, None: without
    limit."""

    server: ServerSettings
    load: LoadSettings
    cores: float
    at_once: int | None

    # --- throughput ------------------------------------------------------------------------------

    @property
    def slots_rps(self) -> float:
        """The throughput that clients and slots allow in a closed loop."""
        clients = self.load.clients
        served = clients if self.at_once is None else min(clients, self.at_once)
        return served / self.load.service_s

    @property
    def cpu_rps(self) -> float | None:
        """The throughput that the CPU allows; None if the app does not compute."""
        load = self.load
        return min(self.server.workers, self.cores) / load.cpu_s if load.cpu_s else None

    @property
    def bound_rps(self) -> float | None:
        """The highest throughput under any load; None: no bound."""
        workers, load = self.server.workers, self.load
        return max_closed_rps(workers, self.at_once, self.cores, load.delay_s, load.cpu_s)

    @property
    def rps(self) -> float | None:
        """Requests/s answered in time; None if a closed loop's requests have nothing to do."""
        load, bound = self.load, self.bound_rps
        if load.is_open:
            return load.rate if bound is None else min(load.rate, bound)
        if load.service_s <= 0:  # only Gunicorn's own time is left
            return None
        return 0.0 if self.in_vain else self.patient_rps

    @property
    def patient_rps(self) -> float:
        """The throughput of a closed loop if no client gave up."""
        return min(self.slots_rps, self.cpu_rps or self.slots_rps)

    @property
    def knee(self) -> float | None:
        """Clients above which requests wait; None: never, or clients give up before an answer."""
        bound = self.bound_rps
        return None if bound is None or self.in_vain else bound * self.load.service_s

    @property
    def is_cpu_bound(self) -> bool:
        """Whether the cores are the limit, not the slots."""
        if self.knee is None or self.at_once is None:
            return self.knee is not None
        return self.knee < 0.99 * self.at_once

    @property
    def busy(self) -> float | None:
        """Utilisation by random arrivals: their rate divided by the bound; None: no bound."""
        return self.load.rate / self.bound_rps if self.bound_rps else None

    # --- response time ---------------------------------------------------------------------------

    @property
    def patient_s(self) -> float:
        """The mean response time if no client gave up; if unknown, the service time."""
        load = self.load
        if load.is_open:
            return load.service_s if self.response_s is None else self.response_s
        return load.clients / self.patient_rps

    @property
    def in_vain(self) -> bool:
        """Whether clients of a closed loop give up before they are answered."""
        load = self.load
        patient = load.is_open or load.service_s <= 0 or load.patience_s <= 0
        return not patient and load.patience_s < self.patient_s

    @cached_property
    def response(self) -> Predicted:
        """The mean response time in seconds."""
        if self.load.service_s <= 0:
            return None
        if self.load.is_open:
            return self._response_at_random
        return "law: no answer in time" if self.in_vain else self.patient_s

    @property
    def _response_at_random(self) -> float | str:
        load, service_s, bound = self.load, self.load.service_s, self.bound_rps
        if bound is None:
            return service_s
        if load.rate >= bound:
            return "law: it grows without bound"
        if self.at_once is None or self.is_cpu_bound:
            return f"law: at least {format_duration(service_s)}, as requests share the cores"
        wait_s = allen_cunneen(load.rate, service_s, service_s**2, self.at_once)
        response_s = service_s + wait_s
        if self.server.workers == 1 or not self.server.has_own_queues:
            return response_s
        if wait_s <= NEGLIGIBLE * service_s:
            return response_s
        least = format_duration(response_s)
        return f"law: at least {least}, as each worker has a queue of its own"

    @property
    def response_s(self) -> float | None:
        return None if isinstance(self.response, str) else self.response

    @property
    def wait_s(self) -> float | None:
        """The mean wait for a slot; None if unknown."""
        return None if self.response_s is None else self.response_s - self.load.service_s

    # --- the accept queue ------------------------------------------------------------------------

    @property
    def queue(self) -> Predicted:
        """The mean number of connections in the accept queue."""
        load, server, row, room = self.load, self.server, self.server.row, self.server.queue_room
        fills = f"law: it grows until it is full, at {count_text(room)}"
        if load.service_s <= 0:
            return None
        if self.in_vain:
            return fills
        at_loop = row.loop or (row.accepts_first and row.slots == "one")
        if at_loop and (server.blocks or load.cpu_ms > 0 or not row.loop):
            return "no prediction: a blocked worker accepts no connections"
        if row.slots == "unlimited":
            return 0.0
        if self.rps is None or self.response_s is None or self.wait_s is None:
            unpredicted = "no prediction: workers accept more than they serve"
            return None if load.cpu_ms > 0 else unpredicted if row.accepts_first else fills
        if load.is_open and not row.accepts_first:  # Little's law: all waiting requests are in it
            return min(room, self.rps * self.wait_s)
        held = server.workers * (1 if row.slots == "one" else server.worker_connections)
        return min(room, max(0.0, round(self.rps * self.response_s - held, 6)))

    # --- for the sentence ------------------------------------------------------------------------

    @property
    def capacity(self) -> str:
        server, at_once = self.server, self.at_once
        unlimited = "an unlimited number of requests" if at_once is None else None
        return fill(CAPACITY, {"server": server, "at_once": at_once, "unlimited": unlimited})

    @property
    def slots_of_worker(self) -> int:
        return (self.at_once or 0) // self.server.workers

    @property
    def taken(self) -> float:
        """The mean number of slots in use by random arrivals (Little)."""
        return self.load.rate * self.load.service_s

    @property
    def blocks(self) -> str:
        return "The app blocks its worker." if self.server.blocks else ""

    @property
    def shares(self) -> str:
        cores = counted(self.cores, "core")
        return f"What computes at the same time shares {cores}." if self.load.cpu_ms > 0 else ""

    @property
    def keeps(self) -> str:
        kept = self.load.keepalive and self.server.workers > 1 and self.server.row.accepts_first
        return KEPT if kept else ""


CAPACITY = (
    "{server.worker_class} with {server.workers:# worker}[[ of {server.own_threads:# thread}]]"
    " serves [[up to {at_once:# request}]][[{unlimited}]] at once"
)
KEPT = "A connection that is kept stays with its worker: others may be free meanwhile."


# --- waiting at random arrivals -----------------------------------------------------------------


def erlang_c(rate_rps: float, mean_s: float, slots: int) -> float:
    """Probability that a request of M/M/c waits, by the recursion of Erlang B. Raises ValueError if
    there is no steady state."""
    busy = _busy(rate_rps, mean_s, slots)
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = busy * slots * blocked / (number + busy * slots * blocked)
    return blocked / (1 - busy * (1 - blocked))


def allen_cunneen(
    rate_rps: float, mean_s: float, square_s2: float, slots: int, arrivals_cv2: float = 1.0
) -> float:
    """Approximate mean waiting time of G/G/c in seconds: Erlang C's, times the mean of the squared
    coefficients of variation of arrivals (1: Poisson) and service; exact for M/M/c and M/G/1. A
    load of a minute or less does not reach this steady state, and stays far from it at 90 % of
    the capacity."""
    busy = _busy(rate_rps, mean_s, slots)
    service_cv2 = max(0.0, square_s2 / mean_s**2 - 1)
    exponential_s = erlang_c(rate_rps, mean_s, slots) * mean_s / (slots * (1 - busy))
    return exponential_s * (arrivals_cv2 + service_cv2) / 2


def _busy(rate_rps: float, mean_s: float, slots: int) -> float:
    busy = rate_rps * mean_s / slots
    if not 0 <= busy < 1:
        raise ValueError(f"no steady state: {busy:.3g} of the slots would be busy")
    return busy


# --- the sentence about a load --------------------------------------------------------------------


class LoadSentence(Finding):
    """{law.capacity}"""

    law: Law


class SlotsForAll(LoadSentence):
    """{law.capacity}: with {law.load.clients:# client} nobody waits for a slot.[[ {law.shares}]]"""


class ClientsDealtOut(LoadSentence):
    """{law.capacity}, {law.slots_of_worker} in each worker. The kernel deals
    {law.load.clients:# client} out by chance: who finds {law.slots_of_worker} there waits, though
    another worker may be free.[[ {law.blocks}]][[ {law.shares}]]"""


class ClientsWait(LoadSentence):
    """{law.capacity}: of {law.load.clients:# client}, {waiting} wait{where}.[[ {law.keeps}]]
    [[ {law.blocks}]]"""

    waiting: int
    where: str


class ClientsGiveUp(LoadSentence):
    """{law.capacity}. {law.load.clients:# client} give up after {law.load.patience_s:duration},
    before their turn, and ask again: the workers serve requests whose clients are gone, and hardly
    any answer comes in time."""


class CpuBound(LoadSentence):
    """Each request computes, on one core per worker: {law.server.workers:# worker} on
    {law.cores:# core} do no more than {law.rps:number} requests/s. Of {law.load.clients:# client},
    some wait for a core; {remedy} would help."""

    remedy: Literal["another worker", "no other worker class"]


class ArrivalsUnbounded(LoadSentence):
    """{law.load.rate:number} requests/s come at random, and nothing limits how many are served at
    once."""


class ArrivalsTooMany(LoadSentence):
    """{law.load.rate:number} requests/s come, and no more than {law.bound_rps:number} can be
    served: more and more wait.[[ {law.blocks}]]"""


class ArrivalsWaitForCores(LoadSentence):
    """{law.load.rate:number} requests/s come at random, of at most {law.bound_rps:number}: the
    cores that it can use are busy {law.busy:percent} of the time, and requests that come close
    together wait for them."""


class ArrivalsWaitForSlots(LoadSentence):
    """{law.load.rate:number} requests/s come at random, of at most {law.bound_rps:number}: on
    average {law.busy:percent} of the slots are taken, and requests that come close together wait
    [[, {law.wait_s:duration} on average]].[[ {law.blocks}]]"""


class ArrivalsHardlyWait(LoadSentence):
    """{law.load.rate:number} requests/s come at random, of at most {law.bound_rps:number}: on
    average {law.taken:number} of {law.at_once:# slot} are taken, so that hardly any request waits.
    [[ {law.blocks}]][[ {law.shares}]]"""


OVERFLOW = (
    ", which is full. The kernel drops what others send; a free place stays empty until they try"
    " again"
)


def sentence(law: Law) -> Finding:
    """What happens under the load."""
    load = law.load
    if load.is_open:
        return sentence_at_random(law)
    if load.service_s <= 0:
        return Note("A request has nothing to do: what Gunicorn itself takes is all there is.")
    if law.in_vain:
        return ClientsGiveUp(law)
    if law.is_cpu_bound and law.knee is not None and load.clients > law.knee:
        enough = law.server.workers >= law.cores
        return CpuBound(law, "no other worker class" if enough else "another worker")
    if law.at_once is None or load.clients <= law.at_once:
        return ClientsDealtOut(law) if deals_unevenly(law) else SlotsForAll(law)
    waiting, room = load.clients - law.at_once, law.server.queue_room
    if law.server.row.accepts_first:
        return ClientsWait(law, waiting, ", most of them inside a worker that has accepted them")
    if law.queue is None or isinstance(law.queue, str):
        return ClientsWait(law, waiting, ", in the accept queue or inside a worker")
    overflow = OVERFLOW if waiting > room else ""
    return ClientsWait(law, min(waiting, room), f" in the kernel's accept queue{overflow}")


def deals_unevenly(law: Law) -> bool:
    """Whether a worker may get more clients than it has slots while another has free slots."""
    server = law.server
    if law.at_once is None or server.workers == 1:
        return False
    slots = law.at_once / server.workers
    accepts_more = server.blocks or (server.row.accepts_first and server.worker_connections > slots)
    return accepts_more and law.load.clients > slots


def sentence_at_random(law: Law) -> LoadSentence:
    if law.busy is None:
        return ArrivalsUnbounded(law)
    if law.busy >= 1:
        return ArrivalsTooMany(law)
    if law.at_once is None or law.is_cpu_bound:
        return ArrivalsWaitForCores(law)
    rarely_full = law.taken + RARE_DEVIATIONS * sqrt(law.taken) < law.at_once
    return ArrivalsHardlyWait(law) if rarely_full else ArrivalsWaitForSlots(law)


# --- for the page -------------------------------------------------------------------------------


def law_of(server: ServerSettings, load: LoadSettings, cores: float) -> Law:
    return Law(server=server, load=load, cores=cores, at_once=server.at_once)


def side_view(server: ServerSettings, load: LoadSettings, cores: float) -> dict[str, object]:
    """A server as the page shows it, live or recorded: settings, slots, law and sentence."""
    law = law_of(server, load, cores)
    reasons = {"response_s": law.response, "queue": law.queue}
    return {
        "server": server,
        "backlog": server.backlog if "backlog" in server.heeds else ASYNCIO_BACKLOG,
        "slots": configured_slots(server.server()),
        "blocked": law.at_once if server.blocks else None,
        "accepts_first": server.row.accepts_first,
        "recent_s": load.recent_s,
        "sentence": str(sentence(law)),
        "law": {
            "rps": law.rps,
            "knee": law.knee,
            "response_s": law.response_s,
            "queue": None if isinstance(law.queue, str) else law.queue,
            "why": {name: value for name, value in reasons.items() if isinstance(value, str)},
        },
    }
