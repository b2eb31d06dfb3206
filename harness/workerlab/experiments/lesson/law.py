"""The law: what queueing theory predicts for a server and a load, and a sentence about it.

Closed loop (Denning & Buzen 1978): with N clients, C requests served at once and S seconds each,
X = min(N, C) / S requests per second, and each takes R = N / X on average. Above the knee
N* = Xmax S, clients wait. Requests that compute are also limited by the cores, those of one worker
by one core. Random arrivals: R = S + W, with W by Allen and Cunneen's approximation (A. O. Allen,
"Probability, Statistics and Queueing Theory", 2nd ed., 1990, 5.4) for a constant service time. The
queue is L = X W (Little).

Closed loop with clients that give up after T seconds, where R > T: each sends a request per T, so
N / T > X arrive per second. The server serves all of them in turn, including abandoned ones, and
the queue grows. Once the wait exceeds T - S, no request is answered in time.
"""

from __future__ import annotations

from functools import cached_property
from math import sqrt
from typing import Literal

from msgspec import Struct

from workerlab.analysis.knee import max_closed_rps
from workerlab.experiments.lesson.settings import LoadSettings, Message, ServerSettings
from workerlab.finding import Finding, Note
from workerlab.numbers.units import count_text, counted, fill, format_duration
from workerlab.server.worker_classes import configured_slots

# Without a limit, the number of requests in flight is Poisson. It exceeds its mean by this many
# standard deviations for 1/30 000 of the time (normal approximation)
RARELY_EXCEEDED_DEVIATIONS = 4
ASYNCIO_BACKLOG = 100  # of a worker that ignores `backlog`: asyncio's own call of listen()
NEGLIGIBLE_WAIT_SHARE = 0.001  # waiting, as a share of the service time

Prediction = float | str | None  # a number, the reason there is none, or None: not applicable


class Law(Struct, frozen=True, dict=True):
    """The prediction for a load. `at_once`: the most requests in the app at the same time; None:
    unlimited."""

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
        load = self.load
        return max_closed_rps(
            workers=self.server.workers,
            slots=self.at_once,
            cores=self.cores,
            wait_s=load.delay_s,
            cpu_s=load.cpu_s,
        )

    @property
    def rps(self) -> float | None:
        """Requests/s answered in time; None if a closed loop's requests have nothing to do."""
        load, bound = self.load, self.bound_rps
        if load.is_open:
            return load.rate if bound is None else min(load.rate, bound)
        if load.service_s <= 0:  # only Gunicorn's own time is left
            return None
        return 0.0 if self.clients_give_up else self.patient_rps

    @property
    def patient_rps(self) -> float:
        """The throughput of a closed loop if no client gave up."""
        return min(self.slots_rps, self.cpu_rps or self.slots_rps)

    @property
    def knee(self) -> float | None:
        """Clients above which requests wait; None: never, or clients give up before a response."""
        bound = self.bound_rps
        return None if bound is None or self.clients_give_up else bound * self.load.service_s

    @property
    def is_cpu_bound(self) -> bool:
        """Whether the cores are the limit, not the slots."""
        if self.knee is None or self.at_once is None:
            return self.knee is not None
        return self.knee < 0.99 * self.at_once

    @property
    def utilisation(self) -> float | None:
        """Under random arrivals: their rate divided by `bound_rps`; None: no bound."""
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
    def clients_give_up(self) -> bool:
        """Whether clients of a closed loop give up before they receive a response."""
        load = self.load
        if load.is_open or load.service_s <= 0:
            return False
        return 0 < load.patience_s < self.patient_s

    @cached_property
    def response(self) -> Prediction:
        """The mean response time in seconds, or why it is not predicted."""
        if self.load.service_s <= 0:
            return None
        if self.load.is_open:
            return self._open_response
        return "law: no response in time" if self.clients_give_up else self.patient_s

    @property
    def _open_response(self) -> float | str:
        load, service_s, bound = self.load, self.load.service_s, self.bound_rps
        if bound is None:
            return service_s
        if load.rate >= bound:
            return "law: it grows without bound"
        if self.at_once is None or self.is_cpu_bound:
            return f"law: at least {format_duration(service_s)}: requests share the cores"
        wait_s = mean_wait_s(load.rate, service_s, self.at_once)
        response_s = service_s + wait_s
        is_shared = self.server.workers == 1 or not self.server.has_own_queues
        if is_shared or wait_s <= NEGLIGIBLE_WAIT_SHARE * service_s:
            return response_s
        return f"law: at least {format_duration(response_s)}: each worker has its own queue"

    @property
    def response_s(self) -> float | None:
        return None if isinstance(self.response, str) else self.response

    @property
    def wait_s(self) -> float | None:
        """The mean wait for a slot; None if unknown."""
        return None if self.response_s is None else self.response_s - self.load.service_s

    # --- the accept queue ------------------------------------------------------------------------

    @property
    def queue(self) -> Prediction:
        """The mean number of connections in the accept queue, or why it is not predicted."""
        load, server, row = self.load, self.server, self.server.row
        capacity = server.queue_capacity
        keeps_growing = f"law: it grows until it is full, at {count_text(capacity)}"
        if load.service_s <= 0:
            return None
        if self.clients_give_up:
            return keeps_growing
        one_thread_accepts = row.loop or (row.accepts_first and row.slots == "one")
        if one_thread_accepts and (server.blocks or load.cpu_ms > 0 or not row.loop):
            return "no prediction: a blocked worker accepts no connections"
        if row.slots == "unlimited":
            return 0.0
        if self.rps is None or self.wait_s is None:
            if load.cpu_ms > 0:
                return None
            accepts_more = "no prediction: workers accept more than they serve"
            return accepts_more if row.accepts_first else keeps_growing
        waiting = self.rps * self.wait_s  # Little's law
        if load.is_open and not row.accepts_first:  # all waiting requests are in it
            return min(capacity, waiting)
        accepted = server.workers * (1 if row.slots == "one" else server.worker_connections)
        in_flight = waiting + self.rps * load.service_s
        return min(capacity, max(0.0, round(in_flight - accepted, 6)))

    # --- for the sentence ------------------------------------------------------------------------

    @property
    def capacity_text(self) -> str:
        server, at_once = self.server, self.at_once
        unlimited = "an unlimited number of requests" if at_once is None else None
        return fill(CAPACITY, {"server": server, "at_once": at_once, "unlimited": unlimited})

    @property
    def slots_per_worker(self) -> int:
        return (self.at_once or 0) // self.server.workers

    @property
    def busy_slots(self) -> float:
        """The mean number of slots in use under random arrivals (Little)."""
        return self.load.rate * self.load.service_s

    @property
    def blocking_note(self) -> str:
        return "The app blocks its worker." if self.server.blocks else ""

    @property
    def cores_note(self) -> str:
        cores = counted(self.cores, "core")
        note = f"Requests that compute at the same time share {cores}."
        return note if self.load.cpu_ms > 0 else ""

    @property
    def keepalive_note(self) -> str:
        keepalive, server = self.load.keepalive, self.server
        return (
            KEEPALIVE_NOTE if keepalive and server.workers > 1 and server.row.accepts_first else ""
        )


CAPACITY = (
    "{server.worker_class} with {server.workers:# worker}[[ of {server.many_threads:# thread}]]"
    " serves [[up to {at_once:# request}]][[{unlimited}]] at once"
)
KEEPALIVE_NOTE = "A keep-alive connection stays with its worker, even while another is free."


# --- waiting at random arrivals -----------------------------------------------------------------


def mean_wait_s(rate_rps: float, service_s: float, slots: int) -> float:
    """Approximate mean waiting time of Poisson arrivals with a constant service time, by Allen and
    Cunneen: that of M/M/c, times the mean of the squared coefficients of variation of arrivals (1)
    and service (0). The slots must be able to serve the rate. The probability that a request of
    M/M/c waits (Erlang C) is computed by the recursion of Erlang B. A load of a minute or less does
    not reach this steady state, and stays far from it at 90 % of the capacity."""
    offered = rate_rps * service_s  # erlangs
    blocked = 1.0
    for servers in range(1, slots + 1):
        blocked = offered * blocked / (servers + offered * blocked)
    waits = blocked / (1 - offered / slots * (1 - blocked))
    return waits * service_s / (slots - offered) / 2


# --- the sentence about a load --------------------------------------------------------------------


class LoadSentence(Finding):
    """{law.capacity_text}"""

    law: Law


class SlotsForAll(LoadSentence):
    """{law.capacity_text}: with {law.load.clients:# client} no request waits for a slot.
    [[ {law.cores_note}]]"""


class ClientsSpreadUnevenly(LoadSentence):
    """{law.capacity_text}, {law.slots_per_worker} in each worker. The kernel distributes
    {law.load.clients:# client} among the workers by chance: once a worker has more than
    {law.slots_per_worker}, some wait, even if another worker is free.[[ {law.blocking_note}]]
    [[ {law.cores_note}]]"""


class ClientsWait(LoadSentence):
    """{law.capacity_text}: of {law.load.clients:# client}, {waiting} wait{where}.
    [[ {law.keepalive_note}]][[ {law.blocking_note}]]"""

    waiting: int
    where: str


class ClientsGiveUp(LoadSentence):
    """{law.capacity_text}. {law.load.clients:# client} give up after
    {law.load.patience_s:duration}, before their turn, and retry: the workers serve requests whose
    clients are gone, and hardly any responses arrive in time."""


class CpuBound(LoadSentence):
    """Each request computes, on one core per worker: {law.server.workers:# worker} on
    {law.cores:# core} can serve at most {law.rps:number} requests/s. Of
    {law.load.clients:# client}, some wait for a core; {remedy} would help."""

    remedy: Literal["another worker", "no other worker class"]


class ArrivalsUnbounded(LoadSentence):
    """{law.load.rate:number} requests/s arrive at random, and nothing limits how many are served at
    once."""


class ArrivalsTooMany(LoadSentence):
    """{law.load.rate:number} requests/s arrive, and at most {law.bound_rps:number} can be served:
    more and more requests wait.[[ {law.blocking_note}]]"""


class ArrivalsWaitForCores(LoadSentence):
    """{law.load.rate:number} requests/s arrive at random, and at most {law.bound_rps:number} can be
    served. The cores that the server can use are busy {law.utilisation:percent} of the time, and
    requests that arrive close together wait for them."""


class ArrivalsWaitForSlots(LoadSentence):
    """{law.load.rate:number} requests/s arrive at random, and at most {law.bound_rps:number} can be
    served. On average {law.utilisation:percent} of the slots are busy, and requests that arrive
    close together wait[[, {law.wait_s:duration} on average]].[[ {law.blocking_note}]]"""


class ArrivalsHardlyWait(LoadSentence):
    """{law.load.rate:number} requests/s arrive at random, and at most {law.bound_rps:number} can be
    served. On average {law.busy_slots:number} of {law.at_once:# slot} are busy, so hardly any
    request waits.[[ {law.blocking_note}]][[ {law.cores_note}]]"""


OVERFLOW = (
    ", which is full. The kernel drops the packets of the other clients; a freed place stays empty"
    " until they retry"
)


def sentence(law: Law) -> Finding:
    """A sentence on what happens under the load."""
    load = law.load
    if load.is_open:
        return _open_sentence(law)
    if load.service_s <= 0:
        return Note("A request has nothing to do: it takes only Gunicorn's own time.")
    if law.clients_give_up:
        return ClientsGiveUp(law)
    if law.is_cpu_bound and law.knee is not None and load.clients > law.knee:
        uses_all_cores = law.server.workers >= law.cores
        return CpuBound(law, "no other worker class" if uses_all_cores else "another worker")
    if law.at_once is None or load.clients <= law.at_once:
        return ClientsSpreadUnevenly(law) if may_spread_unevenly(law) else SlotsForAll(law)
    waiting, capacity = load.clients - law.at_once, law.server.queue_capacity
    if law.server.row.accepts_first:
        return ClientsWait(law, waiting, ", most of them inside a worker that has accepted them")
    if law.queue is None or isinstance(law.queue, str):
        return ClientsWait(law, waiting, ", in the accept queue or inside a worker")
    overflow = OVERFLOW if waiting > capacity else ""
    return ClientsWait(law, min(waiting, capacity), f" in the kernel's accept queue{overflow}")


def may_spread_unevenly(law: Law) -> bool:
    """Whether a worker may get more clients than it has slots while another worker is free."""
    server = law.server
    if law.at_once is None or server.workers == 1:
        return False
    slots = law.at_once / server.workers
    accepts_more = server.blocks or (server.row.accepts_first and server.worker_connections > slots)
    return accepts_more and law.load.clients > slots


def _open_sentence(law: Law) -> LoadSentence:
    if law.utilisation is None:
        return ArrivalsUnbounded(law)
    if law.utilisation >= 1:
        return ArrivalsTooMany(law)
    if law.at_once is None or law.is_cpu_bound:
        return ArrivalsWaitForCores(law)
    busy = law.busy_slots
    rarely_full = busy + RARELY_EXCEEDED_DEVIATIONS * sqrt(busy) < law.at_once
    return ArrivalsHardlyWait(law) if rarely_full else ArrivalsWaitForSlots(law)


# --- for the page -------------------------------------------------------------------------------


def law_of(server: ServerSettings, load: LoadSettings, cores: float) -> Law:
    return Law(server=server, load=load, cores=cores, at_once=server.at_once)


def side_view(server: ServerSettings, load: LoadSettings, cores: float) -> Message:
    """A server as the page shows it, live or recorded: settings, slots, law and sentence."""
    law = law_of(server, load, cores)
    predictions = {"response_s": law.response, "queue": law.queue}
    return {
        "server": server,
        "backlog": server.backlog if "backlog" in server.effective_settings else ASYNCIO_BACKLOG,
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
            "why": {name: value for name, value in predictions.items() if isinstance(value, str)},
        },
    }
