"""A lesson: steps that each change one thing, read from a file.

`lesson.toml` in this directory is the bundled lesson; its comments document the format. `law`
predicts the result of a step; `words` has its texts, for terminal and browser.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from workerlab.experiments.lesson.law import Law
from workerlab.experiments.lesson.settings import (
    MAX_COUNTS,
    OWN_APPS,
    LoadSettings,
    ServerSettings,
)
from workerlab.model import Cell, Rate, UsageError
from workerlab.server.limits import cores
from workerlab.server.worker_classes import CLASSES

SHIPPED = Path(__file__).with_name("lesson.toml")
TOOL = "fast"  # traces each request, so every part of its wait is exact
PER_CONNECTION = 4  # requests, if a step does not set their number
DELAY_S = 1.0  # of a request that does not compute
MAX_RATE_RPS, MAX_OPEN_CONNECTIONS = 500, 500  # of a step with random arrivals
LETTERS = "abcdefgh"  # of choices


class LessonStep(Struct, frozen=True):
    """`name`: of its cell; `changed`: the one thing that differs from the step before. `at_once`:
    requests served at the same time, by the law; None: unlimited. `right`: index of the correct
    one of `choices`; `reactions`: one for each of them. `requests`: of a counted load; `lasts_s`:
    of any other."""

    name: str
    title: str
    changed: str
    server: ServerSettings
    load: LoadSettings
    at_once: int | None
    question: str
    choices: tuple[str, ...]
    reactions: tuple[str, ...]
    right: int
    why: str
    requests: int | None
    lasts_s: float
    cores: float

    @property
    def law(self) -> Law:
        return Law(server=self.server, load=self.load, cores=self.cores, at_once=self.at_once)

    @property
    def is_trial(self) -> bool:
        """Whether it runs as a trial in a terminal. Clients that give up need the live load."""
        return not self.load.patience_s

    @property
    def load_s(self) -> float:
        """Seconds of load, by the law: of the trial, or until the live load is measured."""
        load = self.load
        if load.is_open or not self.is_trial:
            return load.patience_s + self.lasts_s
        return (self.requests or 0) / self.law.patient_rps

    @property
    def cell(self) -> Cell:
        """The cell of its trial."""
        load = self.load
        return Cell(
            self.server.server(load.delay_s, load.cpu_s),
            TOOL,
            MAX_OPEN_CONNECTIONS if load.is_open else load.clients,
            name=self.name,
            rate=Rate(rps=load.rate) if load.is_open else None,
            duration_s=self.lasts_s if load.is_open else None,
            requests=self.requests,
        )

    @property
    def letters(self) -> str:
        return LETTERS[: len(self.choices)]


class Lesson(Struct, frozen=True):
    """`end`: a summary, shown after the last step; "" for none."""

    title: str
    steps: tuple[LessonStep, ...]
    end: str = ""


# --- the format of a file -------------------------------------------------------------------------


class Field(NamedTuple):
    """A field of a table. `requirement`: what a value must be; `default`: of an optional field, or
    `...` if the field is required."""

    requirement: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any]
    default: Any = ...


TEXT = Field(
    "must be text",
    lambda value: isinstance(value, str) and bool(value.strip()),
    lambda value: " ".join(value.split()),
)
FLAG = Field("must be true or false", lambda value: isinstance(value, bool), bool)


def number(
    least: float, most: float, default: Any = ..., kind: type = float, unit: str = ""
) -> Field:
    noun = "whole number" if kind is int else "number"
    return Field(
        f"must be a {noun}{unit} from {least:g} to {most:g}",
        lambda value: type(value) in (int, kind) and least <= value <= most,
        kind,
        default,
    )


def one_of(names: Iterable[str], default: Any = ...) -> Field:
    choices = tuple(names)
    return Field(f"must be one of {', '.join(choices)}", choices.__contains__, str, default)


def tables(least: int, most: int) -> Field:
    return Field(
        f"there must be {least} to {most} of them",
        lambda value: isinstance(value, list) and least <= len(value) <= most,
        list,
    )


Fields = Mapping[str, Field]
OF_LESSON: Fields = {"title": TEXT, "end": TEXT._replace(default=""), "step": tables(1, 30)}
OF_CHOICE: Fields = {"text": TEXT, "reaction": TEXT, "right": FLAG._replace(default=False)}
OF_STEP: Fields = {
    "title": TEXT,
    "changed": TEXT,
    "worker_class": one_of(CLASSES),
    **{
        name: number(1, MAX_COUNTS[name], getattr(ServerSettings(), name), int)
        for name in ("workers", "threads", "worker_connections", "backlog")
    },
    "app": one_of(OWN_APPS, "sleep"),
    "delay": number(0.01, 10, None, unit=" of seconds"),
    "cpu": number(0.01, 1, 0.0),
    "connections": number(1, MAX_COUNTS["clients"], None, int),
    "rate": number(0.1, MAX_RATE_RPS, None),
    "patience": number(0.01, 10, 0.0, unit=" of seconds"),
    "seconds": number(1, 30, 15.0),
    "requests": number(2, 10_000, None, int),
    "at_once": number(1, 100_000, None, int),
    "question": TEXT,
    "choice": tables(2, len(LETTERS)),
    "why": TEXT,
}


def read(path: Path = SHIPPED) -> Lesson:
    """Raises UsageError with the file, the step, the field and what is wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path} is not a TOML file: {error}") from error
    lesson = _values(content, OF_LESSON, str(path))
    steps = tuple(
        _step(table, f"step-{number}", f"{path}, step {number}")
        for number, table in enumerate(lesson["step"], 1)
    )
    return Lesson(lesson["title"], steps, lesson["end"])


def _values(table: object, fields: Fields, where: str) -> dict[str, Any]:
    """The value of every field. Raises UsageError for the first wrong one."""
    if not isinstance(table, dict):
        raise UsageError(f"{where}: must be a table of {', '.join(fields)}")
    for name in table.keys() - fields.keys():
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
        raise UsageError(f"{where}: there is no field {name!r}: {hint}")
    values = {}
    for name, field in fields.items():
        if name not in table:
            if field.default is ...:
                raise UsageError(f"{where}, {name}: is missing")
            values[name] = field.default
        elif field.accepts(table[name]):
            values[name] = field.convert(table[name])
        else:
            shown = _shown(table[name])
            raise UsageError(f"{where}, {name}: {field.requirement}, not {shown}")
    return values


def _shown(value: object) -> str:
    if isinstance(value, list):
        return str(len(value))
    return repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."


def _step(table: object, name: str, where: str) -> LessonStep:
    values = _values(table, OF_STEP, where)
    choices = [
        _values(choice, OF_CHOICE, f"{where}, choice {number}")
        for number, choice in enumerate(values["choice"], 1)
    ]
    right = [place for place, choice in enumerate(choices) if choice["right"]]
    if len(right) != 1:
        raise UsageError(f"{where}: exactly one choice must be right, not {len(right)}")
    server = _server(values, where)
    load = _load(values, where)
    counted = not load.is_open
    step = LessonStep(
        name=name,
        title=values["title"],
        changed=values["changed"],
        server=server,
        load=load,
        at_once=values["at_once"] or server.at_once,
        question=values["question"],
        choices=tuple(choice["text"] for choice in choices),
        reactions=tuple(choice["reaction"] for choice in choices),
        right=right[0],
        why=values["why"],
        requests=(values["requests"] or PER_CONNECTION * load.clients) if counted else None,
        lasts_s=values["seconds"],
        cores=cores(),
    )
    _check(step, where)
    return step


def _server(values: Mapping[str, Any], where: str) -> ServerSettings:
    names = ServerSettings.__struct_fields__
    server = ServerSettings(**{name: values[name] for name in names})
    classes = OWN_APPS[server.app].classes
    if server.worker_class not in classes:
        able = " or ".join(classes)
        raise UsageError(
            f"{where}, app: {server.app!r} is for worker_class {able}, not {server.worker_class}"
        )
    return server


def _load(values: Mapping[str, Any], where: str) -> LoadSettings:
    connections, rate = values["connections"], values["rate"]
    if (connections is None) == (rate is None):
        raise UsageError(f"{where}: needs either connections or a rate")
    common = {
        "delay_s": values["delay"] or (0.0 if values["cpu"] else DELAY_S),
        "cpu_ms": 1000 * values["cpu"],
    }
    if rate is None:
        return LoadSettings(clients=connections, patience_s=values["patience"], **common)
    if conflicts := [field for field in ("cpu", "patience", "requests") if values[field]]:
        raise UsageError(f"{where}, rate: cannot be combined with {conflicts[0]}")
    return LoadSettings("open", rate=rate, **common)


def _check(step: LessonStep, where: str) -> None:
    """Raises UsageError for a step without a prediction, and for a queue too short to make clients
    wait longer than their patience."""
    server, load, law = step.server, step.load, step.law
    if load.is_open:
        if step.at_once is None:
            return
        if server.has_own_queues and server.workers > 1:
            raise UsageError(f"{where}, rate: needs workers = 1 with {server.worker_class}, whose"
                             " workers have a queue each")  # fmt: skip
        if law.bound_rps is not None and load.rate >= law.bound_rps:
            raise UsageError(f"{where}, rate: must be less than the {law.bound_rps:g} requests/s"
                             " that can be served")  # fmt: skip
        return
    if load.patience_s and server.worker_class != "sync":
        raise UsageError(f"{where}, patience: needs worker_class sync, not {server.worker_class}")
    # With fewer, the load would have no steady part
    if step.requests is not None and step.requests < 2 * load.clients:
        raise UsageError(f"{where}, requests: must be at least 2 for each connection")
    if law.in_vain and server.backlog / law.slots_rps < load.patience_s:
        raise UsageError(f"{where}, patience: needs a longer backlog, whose wait exceeds it")
