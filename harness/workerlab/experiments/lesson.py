"""The lesson: steps that each change one thing, read from a file, and the law that they show.

`lesson.toml` beside this module is the lesson that is shipped, and says what a step consists of.
What is said of a step stands in `lesson_words.py`, alike for a terminal and for a browser.

The law of each step is that of a closed loop (Denning & Buzen 1978): N connections and C requests
served at once, each for S seconds, give X = min(N, C) / S requests per second, and each request
takes R = N / X.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab.experiments.lesson_fields import (
    Field,
    fields,
    flag,
    one_of,
    seconds,
    tables,
    whole,
    words,
)
from workerlab.experiments.own_apps import MOST, OWN_APPS, at_once, server_of
from workerlab.model import Cell, UsageError
from workerlab.server.worker_classes import CLASSES

SHIPPED = Path(__file__).with_suffix(".toml")
TOOL = "fast"  # follows each request, so that every part of its wait is exact
PER_CONNECTION = 4  # requests, where a step does not say how many
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
    "delay": Field(seconds, 1.0),
    "connections": Field(whole(1, MOST["clients"])),
    "requests": Field(whole(2, 10_000), None),
    "at_once": Field(whole(1, 100_000), None),
    "question": Field(words),
    "choice": Field(tables(2, len(LETTERS))),
    "why": Field(words),
}


class Step(Struct, frozen=True):
    """`changed`: the one thing that differs from the step before. `at_once`: requests served at the
    same time, by the law; None: as many as come. `right`: the right one of `choices`, from 0;
    `reactions`: to each of them."""

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

    @property
    def rps(self) -> float:
        """Requests per second, by the law."""
        n = self.cell.concurrency
        return (n if self.at_once is None else min(n, self.at_once)) / self.delay_s

    @property
    def response_s(self) -> float:
        """What each request takes, by the law."""
        return self.cell.concurrency / self.rps

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
    cell = _cell(said, number, where)
    return Step(
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
    )


def _cell(said: Mapping[str, Any], number: int, where: str) -> Cell:
    name, app, connections = said["worker_class"], said["app"], said["connections"]
    if name not in (serves := OWN_APPS[app].classes):
        able = " or ".join(serves)
        raise UsageError(f"{where}, app: {app!r} is for worker_class {able}, not {name}")
    requests = said["requests"] or PER_CONNECTION * connections
    if requests < 2 * connections:  # else no moment is neither start nor end
        raise UsageError(f"{where}, requests: must be at least 2 for each connection")
    server = server_of(
        app, name, said["workers"], said["threads"], said["backlog"], said["worker_connections"],
        said["delay"],
    )  # fmt: skip
    return Cell(server, TOOL, connections, name=f"step-{number}", requests=requests)
