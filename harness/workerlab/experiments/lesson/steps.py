"""The lesson: steps that each change one thing, read from a file, and the law that they show.

`lesson.toml` beside this module is the lesson that is shipped, and says what a step consists of.
What is said of a step stands in `words.py`, alike for a terminal and for a browser.

The law of a step is that of a closed loop (Denning & Buzen 1978): N connections and C requests
served at once, each for S seconds, give X = min(N, C) / S requests per second, and each request
takes R = N / X. Where a request computes for P seconds, X is at most min(workers, cores) / P: a
worker runs Python on one core at a time. `law.py` gives the laws of random arrivals and of
clients that give up.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab.analysis.prediction.theory import allen_cunneen
from workerlab.experiments.lesson.fields import (
    Field,
    fields,
    flag,
    number,
    one_of,
    seconds,
    tables,
    whole,
    words,
)
from workerlab.experiments.own_apps import MOST, OWN_APPS, at_once, server_of
from workerlab.model import Cell, Rate, Server, UsageError
from workerlab.server.limits import cores
from workerlab.server.worker_classes import CLASSES, class_named

SHIPPED = Path(__file__).with_name("lesson.toml")
TOOL = "fast"  # follows each request, so that every part of its wait is exact
PER_CONNECTION = 4  # requests, where a step does not say how many
DELAY_S = 1.0  # of a request that does not compute
MAX_RATE_RPS, MAX_OPEN_CONNECTIONS = 500, 500  # of a step with random arrivals
LETTERS = "abcdefgh"  # of choices

# What a file may say, and what a step has where it does not say so
OF_LESSON = {"title": Field(words), "end": Field(words, ""), "step": Field(tables(1, 30))}
OF_CHOICE = {"text": Field(words), "reaction": Field(words), "right": Field(flag, False)}
OF_STEP = {
    "title": Field(words),
    "changed": Field(words),
    "worker_class": Field(one_of(CLASSES)),
    "workers": Field(whole(1, MOST["workers"]), 4),
    "threads": Field(whole(1, MOST["threads"]), 1),
    "worker_connections": Field(whole(1, MOST["worker_connections"]), 1000),
    "backlog": Field(whole(1, MOST["backlog"]), 2048),
    "app": Field(one_of(OWN_APPS), "sleep"),
    "delay": Field(seconds, None),
    "cpu": Field(number(0.01, 1), 0.0),
    "connections": Field(whole(1, MOST["clients"]), None),
    "rate": Field(number(0.1, MAX_RATE_RPS), None),
    "patience": Field(seconds, None),
    "seconds": Field(number(1, 30), 15.0),
    "requests": Field(whole(2, 10_000), None),
    "at_once": Field(whole(1, 100_000), None),
    "question": Field(words),
    "choice": Field(tables(2, len(LETTERS))),
    "why": Field(words),
}


class Step(Struct, frozen=True):
    """`changed`: the one thing that differs from the step before. `at_once`: requests served at the
    same time, by the law; None: as many as come. `right`: the right one of `choices`, from 0;
    `reactions`: to each of them. `patience_s`: when a client gives up and sends another request;
    None: never. `lasts_s`: the load of a step that does not count its requests."""

    title: str
    changed: str
    cell: Cell
    app: str
    delay_s: float
    at_once: int | None
    question: str
    choices: tuple[str, ...]
    reactions: tuple[str, ...]
    right: int
    why: str
    cpu_s: float
    patience_s: float | None
    lasts_s: float
    cores: float

    @property
    def rate_rps(self) -> float | None:
        """Of random arrivals; None in a closed loop."""
        return self.cell.rate.rps if self.cell.rate else None

    @property
    def service_s(self) -> float:
        return self.delay_s + self.cpu_s

    @property
    def slots_rps(self) -> float:
        """Requests per second that connections and slots allow."""
        n = self.cell.concurrency
        return (n if self.at_once is None else min(n, self.at_once)) / self.service_s

    @property
    def cpu_rps(self) -> float | None:
        """Requests per second that the CPU allows; None where nothing is computed."""
        return min(self.cell.server.workers, self.cores) / self.cpu_s if self.cpu_s else None

    @property
    def patient_s(self) -> float:
        """What each request would take in the mean, if no client gave up."""
        if self.rate_rps is not None:
            return self.service_s + self.wait_s
        return self.cell.concurrency / min(self.slots_rps, self.cpu_rps or self.slots_rps)

    @property
    def wait_s(self) -> float:
        """The mean wait for a slot of requests that arrive at random."""
        if self.rate_rps is None or self.at_once is None:
            return 0.0
        return allen_cunneen(self.rate_rps, self.service_s, self.service_s**2, self.at_once)

    @property
    def in_vain(self) -> bool:
        """Clients give up before they are answered."""
        return self.patience_s is not None and self.patience_s < self.patient_s

    @property
    def rps(self) -> float:
        """Requests per second that are answered in time, by the law."""
        if self.rate_rps is not None:
            return self.rate_rps
        return 0.0 if self.in_vain else self.cell.concurrency / self.patient_s

    @property
    def response_s(self) -> float | None:
        """What each request takes in the mean, by the law; None where none is answered."""
        return None if self.in_vain else self.patient_s

    @property
    def letters(self) -> str:
        return LETTERS[: len(self.choices)]


class Lesson(Struct, frozen=True):
    """`end`: what there is to remember, "" for nothing."""

    title: str
    steps: tuple[Step, ...]
    end: str = ""


def read(path: Path = SHIPPED) -> Lesson:
    """Raises UsageError: the file, the step and the field that is wrong, and what is."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no UTF-8, or no TOML
        raise UsageError(f"{path} is not a TOML file: {error}") from error
    said = fields(found, OF_LESSON, str(path))
    numbered = enumerate(said["step"], 1)
    steps = tuple(_step(one, n, f"{path}, step {n}") for n, one in numbered)
    return Lesson(said["title"], steps, said["end"])


def _step(table: object, number: int, where: str) -> Step:
    said = fields(table, OF_STEP, where)
    choices = [
        fields(one, OF_CHOICE, f"{where}, choice {n}") for n, one in enumerate(said["choice"], 1)
    ]
    right = [place for place, one in enumerate(choices) if one["right"]]
    if len(right) != 1:
        raise UsageError(f"{where}: exactly one choice must be right, not {len(right)}")
    said["delay"] = said["delay"] or (0.0 if said["cpu"] else DELAY_S)
    cell = _cell(said, number, where)
    step = Step(
        title=said["title"],
        changed=said["changed"],
        cell=cell,
        app=said["app"],
        delay_s=said["delay"],
        at_once=said["at_once"] or at_once(said["app"], cell.server),
        question=said["question"],
        choices=tuple(one["text"] for one in choices),
        reactions=tuple(one["reaction"] for one in choices),
        right=right[0],
        why=said["why"],
        cpu_s=said["cpu"],
        patience_s=said["patience"],
        lasts_s=said["seconds"],
        cores=cores(),
    )
    _check_law(step, where)
    return step


def _check_law(step: Step, where: str) -> None:
    """Raises UsageError for random arrivals of which `allen_cunneen` says nothing, and for a queue
    too short to hold more than clients have the patience for."""
    held_s = step.cell.server.backlog / step.slots_rps
    if step.in_vain and step.patience_s is not None and held_s < step.patience_s:
        raise UsageError(f"{where}, patience: needs a longer backlog, whose wait exceeds it")
    if step.rate_rps is None or step.at_once is None:
        return
    server = step.cell.server
    own_queues = class_named(server.worker_class).accepts_first or OWN_APPS[step.app].blocks
    if own_queues and server.workers > 1:
        raise UsageError(f"{where}, rate: needs workers = 1 with {server.worker_class}, whose"
                         " workers have a queue each")  # fmt: skip
    if step.rate_rps >= (bound := step.at_once / step.service_s):
        raise UsageError(f"{where}, rate: must be less than the {bound:g} requests/s that can be"
                         " served")  # fmt: skip


def _cell(said: Mapping[str, Any], number: int, where: str) -> Cell:
    name, app = said["worker_class"], said["app"]
    if name not in (serves := OWN_APPS[app].classes):
        able = " or ".join(serves)
        raise UsageError(f"{where}, app: {app!r} is for worker_class {able}, not {name}")
    server = server_of(
        app, name, said["workers"], said["threads"], said["backlog"], said["worker_connections"],
        said["delay"], said["cpu"],
    )  # fmt: skip
    if (said["connections"] is None) == (said["rate"] is None):
        raise UsageError(f"{where}: needs either connections or a rate")
    if said["rate"] is not None:
        return _open_cell(said, server, f"step-{number}", where)
    if said["patience"] and name != "sync":
        raise UsageError(f"{where}, patience: needs worker_class sync, not {name}")
    connections = said["connections"]
    requests = said["requests"] or PER_CONNECTION * connections
    if requests < 2 * connections:  # else no moment is neither start nor end
        raise UsageError(f"{where}, requests: must be at least 2 for each connection")
    return Cell(server, TOOL, connections, name=f"step-{number}", requests=requests)


def _open_cell(said: Mapping[str, Any], server: Server, name: str, where: str) -> Cell:
    if used := [field for field in ("cpu", "patience", "requests") if said[field]]:
        raise UsageError(f"{where}, rate: cannot be combined with {used[0]}")
    rate, lasts_s = Rate(rps=said["rate"]), said["seconds"]
    return Cell(server, TOOL, MAX_OPEN_CONNECTIONS, rate=rate, name=name, duration_s=lasts_s)
