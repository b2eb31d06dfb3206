"""What a run of `workerlab settings` shows: a matrix for each version and where versions differ; of
a Gunicorn file, its lines. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from workerlab.experiments.document import Field, table
from workerlab.experiments.reading import notes_of
from workerlab.experiments.settings.command import SERVER, Asked
from workerlab.experiments.settings.effect import Effect
from workerlab.experiments.settings.effects import SETTINGS, effects
from workerlab.experiments.settings.gunicorn_file import Line
from workerlab.experiments.settings.happenings import HARMFUL
from workerlab.experiments.settings.lanes import launch_name, seen_of
from workerlab.model import Document, Finding, Table, Value
from workerlab.plan import grid
from workerlab.run_store import Run

OWN_WORDS = frozenset({"reuse_port.one"})  # codes that honour a setting in another way
LOGS, STREAMS = ("accesslog", "errorlog"), ("stdout", "stderr")
MARKED = ("ignored", "clamped", "changes")


class Examined(Struct, frozen=True):
    """A worker class in one version of Gunicorn, and with its interpreter where there are several;
    `version` "": the only one. `missing`: settings
    whose launches failed."""

    worker_class: str
    version: str
    found: Mapping[str, Effect]
    missing: tuple[str, ...]
    trials: tuple[str, ...]


def document(run: Run) -> Document:
    asked, every = Asked.of(run.plan), examined(run)
    lined = bool(asked.config)
    tables = [_lines(asked, one) for one in every] if lined else list(_matrices(asked, every))
    faults = [
        Finding("note.not_measured", {"what": key, "why": record.fault.reason})
        for key, record in run.records.items()
        if record.fault is not None
    ]
    names = tuple(map(_name, asked.left_out))
    left_out = [Finding("settings.left_out", {"names": names})] if names else []
    if asked.unknown:
        left_out.append(Finding("settings.line.unexamined", {"names": asked.unknown}))
    return Document(
        run=run.name,
        kind="settings",
        title=_title(run, asked, every),
        environment=run.environment,
        findings=(
            *_strange(asked),
            *(one for its in every if lined for one in _marked_lines(asked, its)),
            *(_of_class(one) for one in every if not lined),
        ),
        tables=(*tables, *_differences(asked, every)),
        notes=(*_unavailable(run), *faults, *left_out, *notes_of(run)),
        valid=not any(one.missing for one in every),
    )


def examined(run: Run) -> list[Examined]:
    """Every class and version that can run here, in the order of the plan."""
    asked = Asked.of(run.plan)
    seen: dict[tuple[str, str], dict[str, dict[str, object]]] = {}
    keys: dict[tuple[str, str], list[str]] = {}
    for one in grid(run.plan):
        server = one.cell.server
        if server.variant in run.plan.unavailable:
            continue
        which = (server.worker_class, asked.version_of(server))
        its = seen.setdefault(which, {})
        keys.setdefault(which, []).append(one.key)
        evidence = seen_of(run.directory, one.key)
        if evidence is not None:
            its[launch_name(one)] = evidence
    return [
        Examined(
            *which,
            found={name: effect for name, effect in effects(its).items() if name in asked.settings},
            missing=tuple(name for name in asked.settings if name not in effects(its)),
            trials=tuple(keys[which]),
        )
        for which, its in seen.items()
    ]


def _title(run: Run, asked: Asked, every: Sequence[Examined]) -> Finding:
    own = run.environment.get("gunicorn") if not any(one.version for one in every) else None
    values = {"gunicorn": own, "config": asked.config, "count": len(asked.settings)}
    if not asked.config:
        return Finding("settings.title", values)
    python = run.environment.get("server_python") if own else None
    by = python and Finding("served", {"python": python, "gunicorn": own})
    return Finding("settings.title.file", {**values, "served": by})


def _unavailable(run: Run) -> Iterable[Finding]:
    for name, why in run.plan.unavailable.items():
        yield Finding("settings.unavailable", {"name": name, "why": why})


def _of_class(one: Examined) -> Finding:
    """What a class does not do as the documentation says, and what was seen of each setting."""
    by_word = {
        word: tuple(name for name, effect in one.found.items() if effect.word == word)
        for word in MARKED
    }
    evidence = [
        Finding("settings.evidence", {"setting": _name(name), "seen": effect.seen})
        for name, effect in one.found.items()
    ]
    happens = tuple(
        Finding("settings.happens", {"what": _name(name), "seen": effect.seen})
        for name, effect in one.found.items()
        if effect.code in HARMFUL
    )
    honoured = sum(effect.word == "honoured" for effect in one.found.values())
    values = {"worker_class": one.worker_class, "version": one.version, "honoured": honoured,
              "all": sum(effect.word is not None for effect in one.found.values()),
              "happens": happens, **by_word}  # fmt: skip
    return Finding("settings.class", values, one.trials, tuple(evidence))


def _name(name: str) -> Value:
    """Of a setting as Gunicorn spells it; of what happens, words."""
    return Finding(f"settings.happening.{name}") if SETTINGS[name].happens else name


def _word(effect: Effect | None) -> Value:
    if effect is None:
        return None
    own = effect.word is None or effect.code in OWN_WORDS
    code = f"of.{effect.code}" if own else effect.word
    return Finding(f"settings.word.{code}", effect.values)


def _matrices(asked: Asked, every: Sequence[Examined]) -> Iterable[Table]:
    """One for each version: a row per setting, a column per class."""
    for version in dict.fromkeys(one.version for one in every):
        these = [one for one in every if one.version == version]
        fields: list[Field] = [("setting", "text", _name)]
        fields += [(one.worker_class, "text", partial(_found, one)) for one in these]
        title = Finding("settings.table.version" if version else "settings.table",
                        {"version": version})  # fmt: skip
        yield table(title, fields, asked.settings)


def _found(one: Examined, name: str) -> Value:
    return _word(one.found.get(name))


def _differences(asked: Asked, every: Sequence[Examined]) -> Iterable[Table]:
    """Settings that a class treats differently in other versions."""
    versions = list(dict.fromkeys(one.version for one in every))
    if len(versions) < 2:
        return
    by_class: dict[str, dict[str, Examined]] = {}
    for one in every:
        by_class.setdefault(one.worker_class, {})[one.version] = one
    rows = [
        (name, worker_class, its)
        for name in asked.settings
        for worker_class, its in by_class.items()
        if len({_kind(one.found[name]) for one in its.values() if name in one.found}) > 1
    ]

    def of_version(version: str, row: tuple[str, str, Mapping[str, Examined]]) -> Value:
        name, _, its = row
        if version not in its:
            return Finding("settings.word.no_class")
        return _word(its[version].found.get(name))

    fields: list[Field] = [
        ("setting", "text", lambda row: _name(row[0])),
        ("worker_class", "text", lambda row: row[1]),
        *((version, "text", partial(of_version, version)) for version in versions),
    ]
    if rows:
        yield table(Finding("settings.table.differences"), fields, rows)


def _kind(effect: Effect) -> object:
    return effect.word, effect.code


def _strange(asked: Asked) -> Iterable[Finding]:
    """Lines that set nothing."""
    for line in asked.lines:
        if line.name in asked.strange:
            values = {"line": line.number, "setting": line.name}
            values["meant"] = asked.strange[line.name] or None
            yield Finding("settings.line.unknown", values)
        where = {"line": line.number, "setting": line.name, "value": line.text}
        if line.name in asked.unset:
            yield Finding("settings.line.annotation", where)
        if asked.values.get(line.name) in STREAMS and line.name in LOGS:
            yield Finding("settings.line.stream", where)


def _marked_lines(asked: Asked, one: Examined) -> Iterable[Finding]:
    """Lines that do not do what they seem to, a sentence each."""
    examined = [line for line in asked.lines if line.name in asked.settings]
    known = [(line, one.found[line.name]) for line in examined if line.name in one.found]
    marked = [(line, effect) for line, effect in known if _tells(asked, line.name, effect)]
    where = {"worker_class": one.worker_class, "version": one.version, "config": asked.config}
    for line, effect in marked:
        values = {"line": line.number, "setting": line.name, "value": line.text, **where}
        word = Finding(f"settings.line.{effect.word}")
        values |= {"word": word, "seen": effect.seen}
        values["most"] = effect.values["most"] if effect.word == "clamped" else None
        yield Finding("settings.line", values, one.trials)
    if not marked:
        whole = len(known) == len(examined) and not asked.left_out
        code = "none" if whole else "none.known"
        yield Finding(f"settings.line.{code}", where, one.trials)


def _at_its_value(asked: Asked, name: str, effect: Effect | None) -> Value:
    """What is clamped, or means something else, at other values does as it says at the file's."""
    if effect is not None and effect.word in MARKED and not _tells(asked, name, effect):
        return Finding("settings.word.honoured")
    return _word(effect)


def _tells(asked: Asked, name: str, effect: Effect) -> bool:
    """Whether it is worth a word: it does nothing, or something else than this value says. A value
    that is computed is not known."""
    value, known = asked.values.get(name), name in asked.values
    if effect.word == "clamped":
        return not known or not isinstance(value, int) or value > effect.values["most"]
    if effect.word == "changes":
        return not known or (bool(value) and (name, value) != ("threads", 1))
    return effect.word == "ignored"


def _lines(asked: Asked, one: Examined) -> Table:
    """The settings of the file, and what each does where that was examined."""

    def effect_of(line: Line) -> Value:
        if line.name in asked.unset:
            return Finding("settings.word.unset")
        if line.name in SERVER:
            return Finding("settings.word.any_class")
        if line.name not in asked.settings:
            return Finding("settings.word.unexamined")
        return _at_its_value(asked, line.name, one.found.get(line.name))

    fields: list[Field] = [
        ("line", "count", lambda line: line.number),
        ("setting", "text", lambda line: line.name),
        ("value", "text", lambda line: line.text),
        ("effect", "text", effect_of),
    ]
    values = {"worker_class": one.worker_class, "version": one.version}
    shown = {*asked.settings, *SERVER, *asked.unknown, *asked.unset, *asked.left_out}
    lines = [line for line in asked.lines if line.name in shown]
    evidence = [
        Finding("settings.evidence", {"setting": line.name, "seen": one.found[line.name].seen})
        for line in lines if line.name in one.found
    ]  # fmt: skip
    note = Finding("settings.note.lines", {"evidence": tuple(evidence)})
    return table(Finding("settings.table.lines", values), fields, lines, note)
