"""The document of `workerlab settings`: a matrix per version (for a Gunicorn file, its lines), and
the differences between versions. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct

from workerlab.experiments.reading import notes_of
from workerlab.experiments.settings.command import SERVER, SettingsRequest
from workerlab.experiments.settings.effect_types import HARMFUL, WORDS, Effect, Word
from workerlab.experiments.settings.effects import SETTINGS, effects
from workerlab.experiments.settings.gunicorn_file import FileLine
from workerlab.experiments.settings.launching import launch_name, seen_of
from workerlab.finding import Answer, Finding
from workerlab.model import Column, Document, Table
from workerlab.notes import NotMeasured
from workerlab.numbers.units import fill
from workerlab.plan import grid
from workerlab.report.values import interpreter, table
from workerlab.run_store import Run

LOGS, STREAMS = ("accesslog", "errorlog"), ("stdout", "stderr")
MARKED: tuple[Word, ...] = ("ignored", "clamped", "changes")


class ClassExamined(Struct, frozen=True):
    """A worker class in one version of Gunicorn. `version`: "" if there is only one; with the
    interpreter if there are several. `effects`: by setting; `missing`: settings whose launches
    failed."""

    worker_class: str
    version: str
    effects: Mapping[str, Effect]
    missing: tuple[str, ...]
    trials: tuple[str, ...]

    def with_word(self, word: Word) -> tuple[str, ...]:
        return tuple(name for name, effect in self.effects.items() if effect.word == word)


class ClassUnavailable(Finding):
    """Left out: {name}. {why:sentence}"""

    name: str
    why: str

    prominence = "notes"


class LeftOutOfQuick(Finding):
    """Left out, because of --quick: {names:list}."""

    names: tuple[str, ...]

    prominence = "notes"


class NotExamined(Finding):
    """Not examined (no experiment covers it): {names:list}."""

    names: tuple[str, ...]

    prominence = "notes"


def document(run: Run) -> Document:
    plan, classes = SettingsRequest.of(run.plan), examined(run)
    left_out = tuple(SETTINGS[name].label for name in plan.left_out)
    notes: list[Finding] = [ClassUnavailable(*pair) for pair in run.plan.unavailable.items()]
    notes += [
        NotMeasured(key, why=record.fault.reason)
        for key, record in run.records.items()
        if record.fault is not None
    ]
    notes += [LeftOutOfQuick(left_out)] if left_out else []
    notes += [NotExamined(tuple(plan.unknown))] if plan.unknown else []
    findings: list[Finding] = list(lines_without_effect(plan))
    tables: list[Table] = []
    for result in classes if plan.config else ():
        findings += lines_marked(plan, result)
        tables.append(table_of_lines(plan, result))
    if not plan.config:
        findings += map(class_honours, classes)
        tables += matrices(plan, classes)
    return Document(
        run=run.name,
        kind="settings",
        title=title(run, plan, classes),
        environment=run.environment,
        findings=tuple(findings),
        tables=(*tables, *differences(plan, classes)),
        notes=(*notes, *notes_of(run)),
        valid=not any(result.missing for result in classes),
    )


def examined(run: Run) -> list[ClassExamined]:
    """Every class and version that can run here, in the order of the plan."""
    plan = SettingsRequest.of(run.plan)
    launches: dict[tuple[str, str], dict[str, dict[str, object]]] = {}
    keys: dict[tuple[str, str], list[str]] = {}
    for trial in grid(run.plan):
        server = trial.cell.server
        if server.variant in run.plan.unavailable:
            continue
        key = (server.worker_class, plan.version_of(server))
        evidence_of_class = launches.setdefault(key, {})
        keys.setdefault(key, []).append(trial.key)
        evidence = seen_of(run.directory, trial.key)
        if evidence is not None:
            evidence_of_class[launch_name(trial)] = evidence
    return [
        ClassExamined(
            worker_class,
            version,
            effects={name: effect for name, effect in proven.items() if name in plan.settings},
            missing=tuple(name for name in plan.settings if name not in proven),
            trials=tuple(keys[worker_class, version]),
        )
        for (worker_class, version), evidence in launches.items()
        for proven in [effects(evidence)]
    ]


def title(run: Run, plan: SettingsRequest, classes: Sequence[ClassExamined]) -> str:
    gunicorn = (
        None if any(result.version for result in classes) else run.environment.get("gunicorn")
    )
    if not plan.config:
        text = "What does each worker class do with Gunicorn's settings?[[ Gunicorn {gunicorn}.]]"
        return fill(text, {"gunicorn": gunicorn})
    python = run.environment.get("server_python") if gunicorn else None
    by = interpreter(str(python), gunicorn) if python else ""
    text = "What {config} does for its worker class[[, served by {by}]]."
    return fill(text, {"config": plan.config, "by": by})


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


def class_honours(examined: ClassExamined) -> ClassHonours:
    """Where a class deviates from the documentation, with the observations as evidence."""
    effects = {SETTINGS[name].label: effect for name, effect in examined.effects.items()}
    return ClassHonours(
        worker_class=examined.worker_class,
        version=examined.version,
        honoured=len(examined.with_word("honoured")),
        settings=sum(effect.word is not None for effect in effects.values()),
        ignored=examined.with_word("ignored"),
        clamped=examined.with_word("clamped"),
        changes=examined.with_word("changes"),
        harm=tuple(
            f"With {label}, {effect.observation}."
            for label, effect in effects.items()
            if effect.code in HARMFUL
        ),
        trials=examined.trials,
        evidence=tuple(EffectSeen(label, effect.observation) for label, effect in effects.items()),
    )


def matrices(plan: SettingsRequest, classes: Sequence[ClassExamined]) -> Iterator[Table]:
    """One table per version: a row per setting, a column per class."""
    for version in dict.fromkeys(result.version for result in classes):
        columns = [Column("setting", "text", value=lambda name: SETTINGS[name].label)]
        columns += [
            Column(result.worker_class, "text", value=partial(cell, result))
            for result in classes
            if result.version == version
        ]
        heading = f"Gunicorn {version}" if version else "What each class does"
        yield table(heading, columns, plan.settings)


def cell(examined: ClassExamined, name: str) -> str | None:
    return examined.effects[name].cell if name in examined.effects else None


def differences(plan: SettingsRequest, classes: Sequence[ClassExamined]) -> Iterator[Table]:
    """Settings that a class treats differently in different versions."""
    versions = list(dict.fromkeys(result.version for result in classes))
    by_class: dict[str, dict[str, ClassExamined]] = {}
    for result in classes:
        by_class.setdefault(result.worker_class, {})[result.version] = result
    rows = []
    for name in plan.settings:
        for worker_class, by_version in by_class.items():
            effects = [
                result.effects[name] for result in by_version.values() if name in result.effects
            ]
            if len({(effect.word, effect.code) for effect in effects}) > 1:
                cells = {version: cell(result, name) for version, result in by_version.items()}
                rows.append((SETTINGS[name].label, worker_class, cells))

    def of_version(version: str, row: tuple[str, str, Mapping[str, str | None]]) -> str | None:
        return row[2].get(version, "not available")

    columns = [
        Column("setting", "text", value=lambda row: row[0]),
        Column("worker_class", "text", heading="class", value=lambda row: row[1]),
    ]
    columns += [
        Column(
            version,
            "text",
            value=partial(of_version, version),
        )
        for version in versions
    ]
    if rows:
        yield table("Where versions differ", columns, rows)


# --- the lines of a file --------------------------------------------------------------------------


class UnknownName(Finding):
    """line {line}: {setting} is not a Gunicorn setting, and the file does not use it
    [[; did you mean {meant}?]]"""

    line: int
    setting: str
    meant: str


class AnnotatedOnly(Finding):
    """line {line}: {setting}: {annotation} sets nothing, since it is an annotation: write
    {setting} = {value}"""

    line: int
    setting: str
    annotation: str
    value: str  # the annotation, if it is one; else "VALUE"


class FileNotStream(Finding):
    """line {line}: {setting} = {value} writes to a file of that name: "-" is the standard stream"""

    line: int
    setting: str
    value: str


def lines_without_effect(plan: SettingsRequest) -> Iterator[Finding]:
    """Lines that set nothing, or something unintended."""
    for line in plan.lines:
        if line.name in plan.strange:
            yield UnknownName(line.number, line.name, plan.strange[line.name])
        if line.name in plan.unset:
            value = line.text if is_literal(line.text) else "VALUE"
            yield AnnotatedOnly(line.number, line.name, line.text, value)
        if plan.values.get(line.name) in STREAMS and line.name in LOGS:
            yield FileNotStream(line.number, line.name, line.text)


def is_literal(source: str) -> bool:
    try:
        ast.literal_eval(source)
    except ValueError:
        return False
    return True


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
OF_WHAT_IS_KNOWN = "Among the settings examined, "


def lines_marked(
    plan: SettingsRequest, examined: ClassExamined
) -> Iterator[LineMarked | NothingIgnored]:
    """An answer for each line that does not do what it says, or NothingIgnored."""
    lines = [line for line in plan.lines if line.name in plan.settings]
    effects = examined.effects
    proven = [(line, effects[line.name]) for line in lines if line.name in effects]
    marked = [(line, effect) for line, effect in proven if differs(plan, line.name, effect)]
    for line, effect in marked:
        assert effect.word is not None
        yield LineMarked(
            line=line.number,
            setting=line.name,
            value=line.text,
            word=effect.word,
            verb=VERBS[effect.word],
            worker_class=examined.worker_class,
            version=examined.version,
            most=effect.values["most"] if effect.word == "clamped" else None,
            effect=effect.observation,
            trials=examined.trials,
        )
    if not marked:
        all_examined = len(proven) == len(lines) and not (plan.left_out or plan.unknown)
        yield NothingIgnored(
            scope="" if all_examined else OF_WHAT_IS_KNOWN,
            config=plan.config,
            worker_class=examined.worker_class,
            version=examined.version,
            trials=examined.trials,
        )


def differs(plan: SettingsRequest, name: str, effect: Effect) -> bool:
    """Whether the line has no effect, or another one than its value says. A computed value is
    unknown, and counts as affected."""
    value, is_known = plan.values.get(name), name in plan.values
    if effect.word == "clamped":
        return not is_known or not isinstance(value, int) or value > effect.values["most"]
    if effect.word == "changes":
        return not is_known or (bool(value) and (name, value) != ("threads", 1))
    return effect.word == "ignored"


def table_of_lines(plan: SettingsRequest, examined: ClassExamined) -> Table:
    """The settings of the file, with their effect where it was examined."""

    def effect_of(line: FileLine) -> str | None:
        if line.name in plan.unset:
            return "sets nothing"
        if line.name in SERVER:
            return "the same for every class"
        if line.name not in plan.settings:
            return "not examined"
        effect = examined.effects.get(line.name)
        if effect is not None and effect.word in MARKED and not differs(plan, line.name, effect):
            return WORDS["honoured"]  # at this value
        return cell(examined, line.name)

    columns = (
        Column("line", "count", value=lambda line: line.number),
        Column("setting", "text", value=lambda line: line.name),
        Column("value", "text", value=lambda line: line.text),
        Column("effect", "text", value=effect_of),
    )
    shown = {*plan.settings, *SERVER, *plan.unknown, *plan.unset, *plan.left_out}
    lines = [line for line in plan.lines if line.name in shown]
    effects = [
        f"{line.name}: {examined.effects[line.name].observation}"
        for line in lines
        if line.name in examined.effects
    ]
    version = f", Gunicorn {examined.version}" if examined.version else ""
    heading = f"Every line, {examined.worker_class}{version}"
    return table(heading, columns, lines, f"{'; '.join(effects)}." if effects else None)
