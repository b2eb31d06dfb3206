"""The document of `workerlab settings`: a matrix per version (for a Gunicorn file, its lines), and
the differences between versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from msgspec import Struct

from workerlab.experiments.reading import notes_of
from workerlab.experiments.settings.command import (
    SERVER,
    SettingsRequest,
    launch_name,
    observations_of,
)
from workerlab.experiments.settings.effect_types import HARMFUL, Effect, Evidence, Word
from workerlab.experiments.settings.effects import SETTINGS, effects
from workerlab.experiments.settings.gunicorn_file import (
    DEFAULTS,
    NEEDS,
    UNUSED,
    FileLine,
    UnknownName,
    class_of,
)
from workerlab.finding import Answer, Finding
from workerlab.model.result import Column, Document, Table
from workerlab.notes import NotMeasured, Unfinished, annotated_only
from workerlab.numbers.units import fill
from workerlab.plan import grid
from workerlab.report.values import interpreter_text, table
from workerlab.run_store import Run

LOGS = ("accesslog", "errorlog")
STREAMS = ("stdout", "stderr")
VALUE_COLUMNS = 40  # of a table in a terminal
DEVIATIONS: tuple[Word, ...] = ("ignored", "clamped", "changes")


class ClassExamined(Struct, frozen=True):
    """A worker class in one version of Gunicorn. `version`: "" if there is only one; includes the
    interpreter if there are several. `effects`: by setting; `missing`: settings without evidence
    from all their launches."""

    worker_class: str
    version: str
    effects: Mapping[str, Effect]
    missing: tuple[str, ...]
    trials: tuple[str, ...]

    def settings_with(self, word: Word) -> tuple[str, ...]:
        return tuple(name for name, effect in self.effects.items() if effect.word == word)


class ClassUnavailable(Finding):
    """Left out {name}: {why:sentence}"""

    name: str
    why: str

    prominence = "notes"


class LeftOutOfQuick(Finding):
    """Not examined because of --quick: {names:list}."""

    names: tuple[str, ...]

    prominence = "notes"


class NotExamined(Finding):
    """Not examined for lack of an experiment: {names:list}."""

    names: tuple[str, ...]

    prominence = "notes"


class NothingExamined(Finding):
    """Nothing was examined[[ {yet}]]"""

    yet: str  # "" in a run that is finished


def document(run: Run) -> Document:
    plan, classes = SettingsRequest.of(run.plan), examined_classes(run)
    left_out = tuple(SETTINGS[name].label for name in plan.left_out)
    run_notes = notes_of(run)
    is_finished = not any(isinstance(note, Unfinished) for note in run_notes)
    examined = {name for result in classes for name in result.effects}
    rows = [name for name in plan.settings if is_finished or name in examined]
    notes: list[Finding] = [ClassUnavailable(*pair) for pair in run.plan.unavailable.items()]
    notes += [
        NotMeasured(key, why=record.fault.reason)
        for key, record in run.records.items()
        if record.fault is not None and not record.interrupted
    ]
    notes += [LeftOutOfQuick(left_out)] if left_out else []
    notes += [NotExamined(plan.unknown)] if plan.unknown else []
    findings: list[Finding] = list(lines_without_effect(plan))
    tables: list[Table] = []
    for result in classes if plan.config else ():
        findings += line_answers(plan, result)
        tables.append(lines_table(plan, result))
    if not plan.config:
        findings += [class_answer(result) for result in classes if result.effects]
        tables += class_tables(rows, classes) if examined else ()
    if not examined:
        findings.append(NothingExamined("" if is_finished else "yet"))
    return Document(
        run=run.name,
        kind="settings",
        title=title(run, plan, classes),
        environment=run.environment,
        findings=tuple(findings),
        tables=(*tables, *differences_table(plan, classes)),
        notes=(*notes, *run_notes),
        valid=not any(result.missing for result in classes),
    )


def examined_classes(run: Run) -> list[ClassExamined]:
    """Every class and version that can run here, in the order of the plan."""
    plan = SettingsRequest.of(run.plan)
    launches: dict[tuple[str, str], dict[str, str]] = {}  # keys of trials, by launch
    for trial in grid(run.plan):
        server = trial.cell.server
        if server.variant not in run.plan.unavailable:
            key = (server.worker_class, plan.version_of(server))
            launches.setdefault(key, {})[launch_name(trial)] = trial.key
    return [
        ClassExamined(
            *key,
            effects={name: effect for name, effect in by_name.items() if name in plan.settings},
            missing=tuple(name for name in plan.settings if name not in by_name),
            trials=tuple(trials.values()),
        )
        for key, trials in launches.items()
        for by_name in [effects(evidence_of(run.directory, trials))]
    ]


def evidence_of(directory: Path, trials: Mapping[str, str]) -> Evidence:
    """The observations of the launches that did not fail. `trials`: their keys, by launch."""
    launches = {name: observations_of(directory, key) for name, key in trials.items()}
    return {name: values for name, values in launches.items() if values is not None}


def title(run: Run, plan: SettingsRequest, classes: Sequence[ClassExamined]) -> str:
    gunicorn = (
        None if any(result.version for result in classes) else run.environment.get("gunicorn")
    )
    if not plan.config:
        text = "What does each worker class do with Gunicorn's settings?[[ Gunicorn {gunicorn}.]]"
        return fill(text, {"gunicorn": gunicorn})
    python = run.environment.get("server_python") if gunicorn else None
    served_by = interpreter_text(str(python), gunicorn) if python else ""
    names = tuple(dict.fromkeys(server.worker_class for server in run.plan.servers))
    is_default = names == (class_of(plan.values),) and "worker_class" not in plan.values
    values = {"config": plan.config, "classes": names, "served_by": served_by}
    why = "Gunicorn's default" if names == ("sync",) else "sync, the default, with multiple threads"
    text = "What {config} does for {classes:list}[[ ({why})]][[, served by {served_by}]]."
    return fill(text, {**values, "why": why if is_default else ""})


# --- what a class does ----------------------------------------------------------------------------


class EffectSeen(Finding):
    """{setting}: {effect}"""

    setting: str
    effect: str


class ClassHonours(Answer):
    """{worker_class}[[, Gunicorn {version}]]: {honoured} of {settings:# setting} honoured
    [[; ignored: {ignored:, }]][[; clamped: {clamped:, }]][[; changed in meaning: {changes:, }]].
    [[ {harm: }]]"""

    worker_class: str
    version: str
    honoured: int
    settings: int
    ignored: tuple[str, ...]
    clamped: tuple[str, ...]
    changes: tuple[str, ...]
    harm: tuple[str, ...]


def class_answer(result: ClassExamined) -> ClassHonours:
    """The settings that a class honours or not, with the observations as evidence."""
    effects = {SETTINGS[name].label: effect for name, effect in result.effects.items()}
    return ClassHonours(
        worker_class=result.worker_class,
        version=result.version,
        honoured=len(result.settings_with("honoured")),
        settings=sum(effect.word is not None for effect in effects.values()),
        ignored=result.settings_with("ignored"),
        clamped=result.settings_with("clamped"),
        changes=result.settings_with("changes"),
        harm=tuple(
            f"With {label}, {effect.observation}."
            for label, effect in effects.items()
            if effect.code in HARMFUL
        ),
        trials=result.trials,
        evidence=tuple(EffectSeen(label, effect.observation) for label, effect in effects.items()),
    )


def class_tables(names: Sequence[str], classes: Sequence[ClassExamined]) -> Iterator[Table]:
    """One table per version: a row for each of these settings, a column per class."""
    for version in dict.fromkeys(result.version for result in classes):
        columns = [Column("setting", "text", value=lambda name: SETTINGS[name].label)]
        columns += [
            Column(result.worker_class, "text", value=partial(effect_text, result))
            for result in classes
            if result.version == version
        ]
        heading = f"Gunicorn {version}" if version else "What each class does"
        yield table(heading, columns, names)


def effect_text(result: ClassExamined, name: str) -> str | None:
    """The effect for a table, such as 'ignored'; None without evidence."""
    effect = result.effects.get(name)
    return effect.cell if effect else None


def differences_table(plan: SettingsRequest, classes: Sequence[ClassExamined]) -> Iterator[Table]:
    """Settings that a class treats differently in different versions, if any."""
    versions = tuple(dict.fromkeys(result.version for result in classes))
    names = dict.fromkeys(result.worker_class for result in classes)
    rows = []
    for name, worker_class in product(plan.settings, names):
        class_results = [result for result in classes if result.worker_class == worker_class]
        effects = filter(None, (result.effects.get(name) for result in class_results))
        if len({(effect.word, effect.code) for effect in effects}) > 1:
            texts = {result.version: effect_text(result, name) for result in class_results}
            by_version = (texts.get(version, "not available") for version in versions)
            rows.append((SETTINGS[name].label, worker_class, *by_version))
    if rows:
        columns = (
            Column("setting", "text"),
            Column("worker_class", "text", heading="class"),
            *(Column(version, "text") for version in versions),
        )
        yield Table("Differences between versions", columns, tuple(rows))


# --- the lines of a file --------------------------------------------------------------------------


class Overridden(Finding):
    """line {line}: {setting} is overridden by line {by}"""

    line: int
    setting: str
    by: int


class PathMissing(Finding):
    """line {line}: {setting} = {value}: Gunicorn does not start because {path} does not exist"""

    line: int
    setting: str
    value: str
    path: str


class FileNotStream(Finding):
    """line {line}: {setting} = {value} writes to a file of that name; use "-" for the standard
    stream"""

    line: int
    setting: str
    value: str


class NeededSettingMissing(Finding):
    """line {line}: {setting}[[ = {value}]]: {effect}"""

    line: int
    setting: str
    value: str
    effect: str


def lacking_settings(plan: SettingsRequest) -> dict[str, str]:
    """The settings that the file uses without another setting that they need, each with the
    consequence."""
    used = {
        name
        for name in plan.set_lines
        if plan.values.get(name, True) not in (*UNUSED, *DEFAULTS.get(name, ()))
    }
    effects = {"keyfile": "every request fails"}
    return {
        name: f"{effects.get(name, 'no effect')} without {NEEDS[name][0]}"
        for name in used
        if name in NEEDS and used.isdisjoint(NEEDS[name])
    }


def lines_without_effect(plan: SettingsRequest) -> Iterator[Finding]:
    """Findings on lines that set nothing, or something unintended."""
    lacking = lacking_settings(plan)
    for line in plan.lines:
        if line.name in lacking:
            yield NeededSettingMissing(line.number, line.name, line.text, lacking[line.name])
        if line.name in plan.strange:
            yield UnknownName(line.number, line.name, plan.strange[line.name])
        if line.is_setting and line.annotated:
            number, annotation = line.annotated
            yield annotated_only(number, line.name, annotation)
        if line.name in plan.absent:
            yield PathMissing(line.number, line.name, line.text, plan.absent[line.name])
        for number in line.overridden if line.is_setting else ():
            yield Overridden(number, line.name, line.by)
        if plan.values.get(line.name) in STREAMS and line.name in LOGS:
            yield FileNotStream(line.number, line.name, line.text)


class LineMarked(Answer):
    """line {line}: {setting}[[ = {value}]] {verb} {worker_class}[[ (Gunicorn {version})]]
    [[, to {most}]]: {effect}"""

    line: int
    setting: str
    value: str
    word: Word
    verb: str
    worker_class: str
    version: str
    most: int | None
    effect: str


class NothingIgnored(Answer):
    """[[{scope}]]{config} sets nothing that {worker_class}[[, Gunicorn {version},]] ignores."""

    scope: str
    config: str
    worker_class: str
    version: str


VERBS: Mapping[Word, str] = {
    "honoured": "is honoured by",
    "ignored": "is ignored by",
    "clamped": "is clamped by",
    "changes": "changes meaning with",
}
EXAMINED_SCOPE = "Among the settings examined, "


def line_answers(
    plan: SettingsRequest, result: ClassExamined
) -> Iterator[LineMarked | NothingIgnored]:
    """An answer for each line that does not do what it says; NothingIgnored if there is none."""
    lines = [line for line in plan.lines if line.name in plan.settings]
    effects = {name: effect for name, effect in result.effects.items() if name not in plan.absent}
    examined = [(line, effects[line.name]) for line in lines if line.name in effects]
    deviating = [(line, effect) for line, effect in examined if deviates(plan, line.name, effect)]
    for line, effect in deviating:
        assert effect.word is not None
        yield LineMarked(
            line=line.number,
            setting=line.name,
            value=line.text,
            word=effect.word,
            verb=VERBS[effect.word],
            worker_class=result.worker_class,
            version=result.version,
            most=effect.values["most"] if effect.word == "clamped" else None,
            effect=effect.observation,
            trials=result.trials,
        )
    if examined and not deviating:
        yield NothingIgnored(
            scope="" if plan.set_lines.keys() <= {*effects, *SERVER} else EXAMINED_SCOPE,
            config=plan.config,
            worker_class=result.worker_class,
            version=result.version,
            trials=result.trials,
        )


def deviates(plan: SettingsRequest, name: str, effect: Effect) -> bool:
    """Whether the line has no effect, or not the effect that its value says. A value that is not
    text, a number, a bool or None is unknown, and counts as affected."""
    value, is_known = plan.values.get(name), name in plan.values
    if effect.word == "clamped":
        return not is_known or not isinstance(value, int) or value > effect.values["most"]
    if effect.word == "changes":
        return not is_known or (bool(value) and (name, value) != ("threads", 1))
    return effect.word == "ignored"


def _class_selected(plan: SettingsRequest, worker_class: str) -> str:
    """The worker class that the file selects. `worker_class`: the class examined."""
    selected = class_of(plan.values)
    depends_on_threads = selected != class_of({**plan.values, "threads": 1})
    why = ", since threads is greater than 1" if depends_on_threads else ""
    other = "" if selected == worker_class else f"; examined for {worker_class}, as requested"
    return f"selects {selected}{why}{other}"


def _line_effect(
    plan: SettingsRequest, result: ClassExamined, lacking: Mapping[str, str], line: FileLine
) -> str:
    """The effect of the line, for a table. `lacking`: from `lacking_settings`."""
    if line.is_setting and not line.sets:
        return "sets nothing"
    if line.name in plan.absent:
        return "Gunicorn does not start"
    if line.name in LOGS and plan.values.get(line.name) in STREAMS:
        return f"a file named {plan.values[line.name]}"
    if line.name == "worker_class":
        return _class_selected(plan, result.worker_class)
    if line.name in SERVER:
        return "the same for every class"
    effect = result.effects.get(line.name)
    if line.name in lacking and not (effect and effect.word == "ignored"):
        return lacking[line.name]
    if effect and effect.word in DEVIATIONS and not deviates(plan, line.name, effect):
        return "honoured"  # at this value
    return effect_text(result, line.name) or "not examined"


def lines_table(plan: SettingsRequest, result: ClassExamined) -> Table:
    """The settings in the file, with their effect where it was examined."""
    lacking = lacking_settings(plan)
    names = {*plan.settings, *SERVER, *plan.unknown, *plan.left_out}
    lines = [line for line in plan.lines if line.is_setting or line.name in names]
    columns = [
        Column("line", "count", value="number"),
        Column("setting", "text", value="name"),
        Column("value", "text", value="text", width=VALUE_COLUMNS),
        Column("effect", "text", value=partial(_line_effect, plan, result, lacking)),
    ]
    if any(line.source for line in lines):
        columns.append(Column("source", "text", 1, width=VALUE_COLUMNS))
    effects = [
        f"{line.name}: {effect.observation}"
        for line in lines
        if (effect := result.effects.get(line.name)) and line.name not in {*plan.absent, *lacking}
    ]
    version = f", Gunicorn {result.version}" if result.version else ""
    heading = f"Settings in the file, {result.worker_class}{version}"
    note = f"{'; '.join(effects)}." if effects else ""
    return table(heading, columns, lines, note, keys=2)  # a line may have several settings
