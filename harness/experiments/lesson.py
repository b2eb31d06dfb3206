"""The lesson: six steps, each of which changes one thing. Pure: what is said, asked and predicted.

The law of each step is that of a closed loop (Denning & Buzen 1978): N connections and C requests
served at once, each for S seconds, give X = min(N, C) / S requests per second, and each request
takes R = N / X.
"""

from msgspec import Struct
from msgspec.structs import replace

from harness.model import App, Cell, CellResult, Server
from harness.numbers.units import format_duration
from harness.plan import SLEEP_ENV
from harness.report.messages import amount, text
from harness.server.worker_classes import ASGI_CLASSES

SLEEP_S = 1.0
ROUNDS = 4
WORKERS = 4
TOOL = "fast"  # follows each request, so that every part of its wait is exact
WSGI_APP = App("apps.sleep_wsgi:app", env=((SLEEP_ENV, f"{SLEEP_S:g}"),), sleep_s=SLEEP_S)
ASGI_APP = replace(WSGI_APP, target="apps.blocking_asgi:app")

# The parts of a response time, as the report calls them, in the order in which they pass
PARTS = {
    "connect_s": "connecting",
    "accept_queue_s": "accept queue",
    "in_worker_s": "inside a worker",
    "service_s": "in the app",
}


class Step(Struct, frozen=True):
    """`changed`: the one thing that differs from the step named in it. `at_once`: requests served
    at the same time, by the law. `right`: the choice that the law implies, from 0."""

    title: str
    changed: str
    cell: Cell
    at_once: int
    question: str
    choices: tuple[str, ...]
    right: int
    why: str

    @property
    def rps(self) -> float:
        """Requests per second, by the law."""
        return min(self.cell.concurrency, self.at_once) / SLEEP_S

    @property
    def response_s(self) -> float:
        """What each request takes, by the law."""
        return self.cell.concurrency / self.rps


def _cell(worker_class: str, connections: int, backlog: int = 2048) -> Cell:
    app = ASGI_APP if worker_class in ASGI_CLASSES else WSGI_APP
    return Cell(Server(worker_class, WORKERS, 1, backlog, 1000, app=app), TOOL, connections)


STEPS = (
    Step(
        "sync, 4 connections",
        "Four workers of class sync; each serves one request at a time. The app sleeps 1 s. Four"
        " connections send a new request as soon as the last one is answered.",
        _cell("sync", 4),
        4,
        "Does any request have to wait?",
        ("no: each finds a worker that is free", "one of them", "three of them"),
        0,
        "Four connections, four slots: nobody waits.",
    ),
    Step(
        "sync, 8 connections",
        "Only the number of connections changes: 8 instead of 4.",
        _cell("sync", 8),
        4,
        "Each request takes a second longer. Where does it spend that second?",
        ("connecting", "in the kernel's accept queue", "inside a worker"),
        1,
        "Twice the connections: twice the time, not twice the throughput. The kernel completes the"
        " handshake by itself, so connecting takes no time; the connection then waits, already"
        " established, until a worker accepts it.",
    ),
    Step(
        "eventlet, 8 connections",
        "Only the worker class changes: eventlet instead of sync, still four processes.",
        _cell("eventlet", 8),
        WORKERS * 1000,
        "How can four processes serve eight requests at once?",
        (
            "eventlet starts more processes",
            "the kernel answers some of them",
            "a request that sleeps lets others run in the same process",
        ),
        2,
        "While a request sleeps, or waits for a database, its worker serves others. It has slots to"
        " spare, so what goes in comes out.",
    ),
    Step(
        "sync, 16 connections",
        "Back to sync, as in the second step. Only the connections change: 16 instead of 8.",
        _cell("sync", 16),
        4,
        "Four times as many as can be served at once. How many requests fail?",
        ("none: they only wait longer", "those that wait for more than a second", "12 of 16"),
        0,
        "A long accept queue (here 2048) hides an overload: nothing fails, nothing is refused,"
        " everybody only waits longer.",
    ),
    Step(
        "sync, 16 connections, a backlog of 4",
        "Only the length of the accept queue changes: 4 instead of 2048. Of the 12 that wait, no"
        " more than 5 find room (the kernel lets one more in than the limit says).",
        _cell("sync", 16, backlog=4),
        4,
        "What becomes of the others?",
        (
            "they are refused at once",
            "the kernel ignores them, and they try again later",
            "they wait in the queue all the same",
        ),
        1,
        "A full accept queue does not refuse: the kernel drops what comes, and the client's kernel"
        " repeats it seconds later. Now the wait shows in connecting, and the slots may even stand"
        " idle meanwhile.",
    ),
    Step(
        "uvicorn with a blocked event loop, 8 connections",
        "An asynchronous class as in the third step, 8 connections; but the app calls time.sleep()"
        " in an async def, which does not let others run.",
        _cell("uvicorn", 8),
        WORKERS,
        "Nothing limits the slots of uvicorn. How many requests are served at once?",
        ("all 8", "4 at most, one per worker", "1"),
        1,
        "One call that blocks stops everything in its worker: an asynchronous class is then no"
        " better than sync, and worse where one worker has accepted more than another.",
    ),
)


def law(step: Step) -> str:
    """What the law predicts, with its numbers."""
    n, at_once = step.cell.concurrency, step.at_once
    return (
        f"The law: min({n} connections, {at_once} slots) / {SLEEP_S:g} s ="
        f" {amount(step.rps)} requests/s at best;"
        f" each takes {n} / {amount(step.rps)} = {format_duration(step.response_s)}."
    )


def outcome(step: Step, cell: CellResult) -> list[str]:
    """What came out, beside what was predicted; and where the time went."""
    if cell.throughput_rps is None:
        return [f"Nothing can be said: {text(cell.reason)}."]
    split = cell.breakdown
    stalls = [one for one in cell.findings if one.code == "diagnosis.stall"]
    came_out = "Came out over the whole load" if stalls else "Came out"
    lines = [
        f"{came_out}: {amount(cell.throughput_rps)} requests/s"
        f" (the law: {amount(step.rps)} at best),"
        f" {format_duration(split.response_s)} each (the law: {format_duration(step.response_s)})."
    ]
    for stall in stalls:
        idle_s, load_s = (format_duration(stall.values[name]) for name in ("idle_s", "load_s"))
        lines.append(f"For {idle_s} of {load_s} slots stood idle while clients waited.")
    parts = [
        f"{name} {format_duration(value_s) if value_s >= 0.001 else 'under 1 ms'}"
        for field, name in PARTS.items()
        if (value_s := getattr(split, field)) is not None
    ]
    if parts:
        lines.append(f"Where a request spent its time: {', '.join(parts)}.")
    return lines
