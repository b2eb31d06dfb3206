"""Notes on plans, made before anything starts, and on runs. Several packages use each of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from msgspec.structs import replace

from workerlab.finding import Answer, Finding, stored
from workerlab.model.plan import Plan


def add_notes(plan: Plan, findings: Iterable[Finding]) -> Plan:
    """The plan with further notes."""
    return replace(plan, notes=(*plan.notes, *map(stored, findings)))


class FlagIgnored(Finding):
    """{flag} has no effect with {classes:list}"""

    flag: str
    classes: tuple[str, ...]

    prominence = "title"


class SettingIgnored(Finding):
    """{config}: {setting} = {value} has no effect with {classes:list}"""

    config: str | None
    setting: str
    value: object
    classes: tuple[str, ...]

    prominence = "title"


class AnnotatedOnly(Finding):
    """[[{config}, ]]line {line}: {setting}: {annotation} sets nothing, since it is an annotation:
    write {setting} = {value}"""

    config: str | None  # None: clear from the context
    line: int
    setting: str
    annotation: str
    value: str  # the annotation, if it is a value; else "VALUE"

    prominence = "title"


def annotated_only(
    line: int, setting: str, annotation: str, config: str | None = None
) -> AnnotatedOnly:
    value = annotation if is_literal(annotation) else "VALUE"
    return AnnotatedOnly(config, line, setting, annotation, value)


def is_literal(source: str) -> bool:
    """Whether the text is a Python literal, which can be a value."""
    try:
        ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return False
    return True


class SettingOverridden(Finding):
    """{config}: {setting} = {value} is overridden: {why}"""

    config: str | None
    setting: str
    value: str
    why: str
    may_slow: bool = False  # whether the setting may lower the rates


class ServerCoresBound(Finding):
    """--server-cores binds the server alone: the load tool may use all {cores:# core}"""

    cores: int | None


class ClientsLinger(Finding):
    """clients close their connections {linger_s:duration} after the response (--client lingers); if
    1000 are open, the oldest are closed sooner"""

    linger_s: float


class RequestsNotFollowed(Finding):
    """with --duration, {tool} tracks individual requests only with --ramp: the parts of response
    times are estimates; without --duration they are exact"""

    tool: str


class MoreCoresThanHere(Finding):
    """the forecast is for {cores:number} cores, but the launches ran on this machine, which has
    {here:number}"""

    cores: float
    here: float


class ToolLeftOut(Finding):
    """Left out: {why:sentence}"""

    why: str

    prominence = "notes"


class NotMeasured(Finding):
    """{what} was not measured: {why:sentence}"""

    what: str
    why: str | Finding

    prominence = "notes"


class LeftOut(Answer):
    """Left out {classes:list}: {reason:sentence}"""

    classes: tuple[str, ...]
    reason: Finding


class Unfinished(Finding):
    """{unfinished:# trial} not finished[[. Resume with: workerlab {command} --resume {run}]]"""

    unfinished: int
    command: str
    run: str

    prominence = "notes"
