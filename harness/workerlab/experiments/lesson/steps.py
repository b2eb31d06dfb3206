"""A lesson: steps that each change one thing, read from a file.

`lesson.toml` in this directory is the bundled lesson; its comments document the format. `law`
predicts the result of a step; `texts` has its texts, for terminal and browser.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab.errors import UsageError
from workerlab.experiments.lesson.law import Law
from workerlab.experiments.lesson.settings import (
    BUNDLED_APPS,
    FLAG,
    SETTINGS,
    TEXT,
    Field,
    LoadSettings,
    ServerSettings,
    number_field,
)
from workerlab.model.plan import Cell, Rate
from workerlab.options import BadArgument, one_of
from workerlab.server.limits import cores

BUNDLED_LESSON = Path(__file__).with_name("lesson.toml")
LOAD_TOOL = "fast"  # traces each request, so every part of its wait is exact
REQUESTS_PER_CONNECTION = 4  # if a step does not set the number of requests
DEFAULT_DELAY_S = 1.0  # of a request that does not compute
MAX_RATE_RPS, MAX_OPEN_CONNECTIONS = 500, 500  # of a step with random arrivals
CHOICE_LETTERS = "abcdefgh"


class LessonStep(Struct, frozen=True):
    """`name`: of its cell; `changed`: the one change from the previous step. `at_once`: requests
    served at the same time, by the law; None: unlimited. `right`: index of the correct choice;
    `reactions`: one per choice. `requests`: of a load with a fixed number; `duration_s`: of any
    other load."""

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
    duration_s: float
    cores: float

    @property
    def law(self) -> Law:
        return Law(server=self.server, load=self.load, cores=self.cores, at_once=self.at_once)

    @property
    def is_trial(self) -> bool:
        """Whether the step runs as a trial in a terminal. Clients that give up need the live
        load."""
        return not self.load.patience_s

    @property
    def load_s(self) -> float:
        """Seconds of load, by the law: of the trial, or until the live load is measured."""
        load = self.load
        if load.is_open or not self.is_trial:
            return load.patience_s + self.duration_s
        return (self.requests or 0) / self.law.patient_rps

    @property
    def cell(self) -> Cell:
        """The cell of the step's trial."""
        load = self.load
        return Cell(
            server=self.server.server(load.delay_s, load.cpu_s),
            tool=LOAD_TOOL,
            concurrency=MAX_OPEN_CONNECTIONS if load.is_open else load.clients,
            name=self.name,
            rate=Rate(rps=load.rate) if load.is_open else None,
            duration_s=self.duration_s if load.is_open else None,
            requests=self.requests,
        )

    @property
    def letters(self) -> str:
        return CHOICE_LETTERS[: len(self.choices)]


class Lesson(Struct, frozen=True):
    """`end`: a summary, shown after the last step; "" for none."""

    title: str
    steps: tuple[LessonStep, ...]
    end: str = ""


# --- the format of a file -------------------------------------------------------------------------


def tables_field(minimum: int, maximum: int) -> Field:
    return Field(
        requirement=f"there must be {minimum} to {maximum} of them",
        accepts=lambda value: isinstance(value, list) and minimum <= len(value) <= maximum,
        convert=list,
    )


Fields = Mapping[str, Field]
LESSON_FIELDS: Fields = {
    "title": TEXT,
    "end": TEXT._replace(default=""),
    "step": tables_field(1, 30),
}
CHOICE_FIELDS: Fields = {"text": TEXT, "reaction": TEXT, "right": FLAG._replace(default=False)}
STEP_FIELDS: Fields = {
    "title": TEXT,
    "changed": TEXT,
    "worker_class": SETTINGS["worker_class"],
    **{
        name: SETTINGS[name]._replace(default=getattr(ServerSettings(), name))
        for name in ("workers", "threads", "worker_connections", "backlog")
    },
    "app": SETTINGS["app"]._replace(default="sleep"),
    "delay": number_field(0.01, 10, default=None, unit=" of seconds"),
    "cpu": number_field(0.01, 1, default=0.0),
    "connections": SETTINGS["clients"]._replace(default=None),
    "rate": number_field(0.1, MAX_RATE_RPS, default=None),
    "patience": number_field(0.01, 10, default=0.0, unit=" of seconds"),
    "seconds": number_field(1, 30, default=15.0),
    "requests": number_field(2, 10_000, default=None, kind=int),
    "at_once": number_field(1, 100_000, default=None, kind=int),
    "question": TEXT,
    "choice": tables_field(2, len(CHOICE_LETTERS)),
    "why": TEXT,
}


def read_lesson(path: str | Path = BUNDLED_LESSON) -> Lesson:
    """The lesson in a file. Raises UsageError with the file, the step, the field and the
    mistake."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path} is not a TOML file: {error}") from error
    lesson = _values(content, LESSON_FIELDS, str(path))
    steps = tuple(
        _step(table, name=f"step-{number}", location=f"{path}, step {number}")
        for number, table in enumerate(lesson["step"], 1)
    )
    return Lesson(title=lesson["title"], steps=steps, end=lesson["end"])


def _values(table: object, fields: Fields, location: str) -> dict[str, Any]:
    """The value of every field. Raises UsageError for the first invalid one."""
    if not isinstance(table, dict):
        raise UsageError(f"{location}: must be a table of {', '.join(fields)}")
    for name in table:
        try:
            one_of("field", name, fields)
        except BadArgument as problem:
            raise UsageError(f"{location}: {problem}") from None
    values = {}
    for name, field in fields.items():
        if name not in table:
            if field.default is ...:
                raise UsageError(f"{location}, {name}: is missing")
            values[name] = field.default
        elif field.accepts(table[name]):
            values[name] = field.convert(table[name])
        else:
            value = _value_text(table[name])
            raise UsageError(f"{location}, {name}: {field.requirement}, not {value}")
    return values


def _value_text(value: object) -> str:
    if isinstance(value, list):
        return str(len(value))
    return repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."


def _step(table: object, name: str, location: str) -> LessonStep:
    values = _values(table, STEP_FIELDS, location)
    choices = [
        _values(choice, CHOICE_FIELDS, f"{location}, choice {number}")
        for number, choice in enumerate(values["choice"], 1)
    ]
    right = [index for index, choice in enumerate(choices) if choice["right"]]
    if len(right) != 1:
        raise UsageError(f"{location}: exactly one choice must be right, not {len(right)}")
    server = _server(values, location)
    load = _load(values, location)
    requests = values["requests"] or REQUESTS_PER_CONNECTION * load.clients
    step = LessonStep(
        **{field: values[field] for field in ("title", "changed", "question", "why")},
        name=name,
        server=server,
        load=load,
        at_once=values["at_once"] or server.at_once,
        choices=tuple(choice["text"] for choice in choices),
        reactions=tuple(choice["reaction"] for choice in choices),
        right=right[0],
        requests=None if load.is_open else requests,
        duration_s=values["seconds"],
        cores=cores(),
    )
    _check(step, location)
    return step


def _server(values: Mapping[str, Any], location: str) -> ServerSettings:
    names = ServerSettings.__struct_fields__
    server = ServerSettings(**{name: values[name] for name in names})
    classes = BUNDLED_APPS[server.app].classes
    if server.worker_class not in classes:
        supported = " or ".join(classes)
        raise UsageError(
            f"{location}, app: {server.app!r} is for worker_class {supported},"
            f" not {server.worker_class}"
        )
    return server


def _load(values: Mapping[str, Any], location: str) -> LoadSettings:
    connections, rate = values["connections"], values["rate"]
    if (connections is None) == (rate is None):
        raise UsageError(f"{location}: needs either connections or a rate")
    service = {
        "delay_s": values["delay"] or (0.0 if values["cpu"] else DEFAULT_DELAY_S),
        "cpu_ms": 1000 * values["cpu"],
    }
    if rate is None:
        return LoadSettings(clients=connections, patience_s=values["patience"], **service)
    if conflicts := [field for field in ("cpu", "patience", "requests") if values[field]]:
        raise UsageError(f"{location}, rate: cannot be combined with {conflicts[0]}")
    return LoadSettings(model="open", rate=rate, **service)


def _check(step: LessonStep, location: str) -> None:
    """Raises UsageError for a step without a prediction, and for a queue too short to make clients
    wait longer than their patience."""
    server, load, law = step.server, step.load, step.law
    if load.is_open:
        if step.at_once is None:
            return
        if server.has_own_queues and server.workers > 1:
            raise UsageError(f"{location}, rate: needs workers = 1 with {server.worker_class},"
                             " whose workers have a queue each")  # fmt: skip
        if law.bound_rps is not None and load.rate >= law.bound_rps:
            raise UsageError(f"{location}, rate: must be less than the {law.bound_rps:g}"
                             " requests/s that can be served")  # fmt: skip
        return
    if load.patience_s and server.worker_class != "sync":
        raise UsageError(
            f"{location}, patience: needs worker_class sync, not {server.worker_class}"
        )
    # With fewer, the load would have no steady part
    if step.requests is not None and step.requests < 2 * load.clients:
        raise UsageError(f"{location}, requests: must be at least 2 for each connection")
    if law.clients_give_up and server.backlog / law.slots_rps < load.patience_s:
        raise UsageError(
            f"{location}, patience: needs a longer backlog, or clients would not give up"
        )
