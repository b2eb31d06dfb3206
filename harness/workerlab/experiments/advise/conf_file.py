"""The file that `advise` writes: for another server a script with its command line; for Gunicorn
a gunicorn.conf.py: settings, each with the reason for it as a comment.

It works as is: `gunicorn -c FILE`, from the app's directory if Gunicorn is likely to be started
there, else from any. If the app has a Gunicorn file of its own, the new file is a copy of it with
as few changes as possible: settings with another value are replaced in place, and the old line is
kept as a comment; other settings are appended.
"""

import ast
import shlex
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from workerlab.model import Server
from workerlab.server.backends import BACKENDS
from workerlab.server.inside.introspect import annotated
from workerlab.server.worker_classes import class_named

COMMENT_WIDTH = 92  # characters
HOST, PORT = "127.0.0.1", 8000  # Gunicorn's default
Assignment = ast.Assign | ast.AnnAssign
OVERRIDING = "These override what is assigned above:"
ANNOTATED = "Without effect, since an annotation sets nothing:"


class OwnFile(Struct, frozen=True):
    """The app's own Gunicorn file; an empty text: none. `sets`: the settings in it; `kept`: those
    that stay unchanged but need a remark, each with the remark."""

    text: str = ""
    path: str = ""
    sets: Sequence[str] = ()
    kept: Mapping[str, str] = {}


NO_FILE = OwnFile()


class ConfLine(Struct, frozen=True):
    """A setting in the file, with its reason as a comment. `evidence`: sentences above it."""

    name: str
    value: object
    why: str
    evidence: Sequence[str] = ()

    def __str__(self) -> str:
        line = f"{self.name} = {self.value!r}  # {self.why}"
        return "\n".join([*map(comment, self.evidence), line])


def comment(text: str) -> str:
    """The text as comment lines, wrapped at COMMENT_WIDTH."""
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, COMMENT_WIDTH))


def start_script(server: Server, evidence: Sequence[str], python: str) -> str:
    """A shell script that starts another server than Gunicorn as it was measured, on Gunicorn's
    default address. `python`: its interpreter."""
    app, backend = server.app, BACKENDS[server.worker_class]
    target = app.target if ":" in app.target else f"{app.target}:application"  # as for Gunicorn
    command = [python, *backend.command_line(server, target, HOST, PORT)]
    return "\n".join([
        "#!/bin/sh",
        *map(comment, evidence),
        f"cd {shlex.quote(app.chdir)} || exit",
        *(f"export {name}={shlex.quote(value)}" for name, value in app.env),
        f"exec {shlex.join(command)}",
        "",
    ])  # fmt: skip


def settings(
    server: Server,
    evidence: Sequence[str],
    own: Sequence[str] = (),
    grace_s: int | None = None,
    starts_in: str | None = None,
) -> list[ConfLine]:
    """The measured settings of a server: those that its worker class uses, threads and backlog also
    if the app's own Gunicorn file sets them (`own`): sync with several threads would be gthread.
    For the others, see `conf_file`."""
    worker_class = class_named(server.worker_class)
    name, why = worker_class.path or worker_class.name, "chosen for the target above"
    lines = [
        ConfLine("worker_class", name, why, evidence),
        ConfLine("workers", server.workers, "processes"),
    ]
    if "threads" not in worker_class.ignores or "threads" in own:
        why = f"of each worker: {server.workers * server.threads} requests at once"
        if "threads" in worker_class.ignores:
            why = f"{name} uses none, and sync with several would be gthread"
        lines.append(ConfLine("threads", server.threads, why))
    if "worker_connections" not in worker_class.ignores:
        lines.append(
            ConfLine("worker_connections", server.worker_connections, "at most, per worker")
        )
    if "backlog" in own and "backlog" not in worker_class.ignores:
        lines.append(ConfLine("backlog", server.backlog, "connections that wait, at most"))
    if grace_s is not None:
        why = "seconds: a stop after a load takes this long, and cuts off longer requests"
        lines.append(ConfLine("graceful_timeout", grace_s, why))
    if server.app.chdir and starts_in is None:
        why = "the app's directory, so Gunicorn can be started from anywhere"
        lines.append(ConfLine("chdir", server.app.chdir, why))
    if server.app.target:
        is_there = starts_in == server.app.chdir
        why = "the app, found if Gunicorn is started in its directory" if is_there else "the app"
        lines.append(ConfLine("wsgi_app", server.app.target, why))
    return lines


def conf_file(
    server: Server,
    evidence: Sequence[str],
    own: OwnFile = NO_FILE,
    *,
    grace_s: int | None = None,
    starts_in: str | None = None,
) -> str:
    """The text of the file. `evidence`: sentences; `grace_s`: graceful_timeout; None: not set;
    `starts_in`: as in AdviseRequest."""
    env = [f"{name}={value}" for name, value in server.app.env]
    conf_lines = settings(server, evidence, own.sets, grace_s, starts_in)
    own_env = _literal(_replaceable(own.text).get("raw_env")) if "raw_env" in own.sets else ()
    own_env = (own_env,) if isinstance(own_env, str) else own_env
    if env and isinstance(own_env, list | tuple):
        conf_lines.append(ConfLine("raw_env", [*own_env, *env], "environment of the app"))
    lines: list[str] = []
    if own.text:
        text, placed = merged(own, conf_lines)
        lines += _to_be_read(server, own, text, starts_in)
        conf_lines = [setting for setting in conf_lines if setting.name not in placed]
    assigned = _stores(own.text)
    overriding = [setting for setting in conf_lines if assigned[setting.name]]
    appended = [str(setting) for setting in conf_lines if setting not in overriding]
    lines += ["", *appended] if lines and appended else appended
    if overriding:
        lines += ["", comment(OVERRIDING), *map(str, overriding)]
    if env and not isinstance(own_env, list | tuple):  # computed by the app's file; may be a string
        lines.append("_env = [raw_env] if isinstance(raw_env, str) else raw_env")
        lines.append(f"raw_env = [*_env, *{env!r}]  # environment of the app")
    return "\n".join(lines) + "\n"


# --- a file of the app's own ----------------------------------------------------------------------


def merged(own: OwnFile, conf_lines: Iterable[ConfLine]) -> tuple[list[str], set[str]]:
    """The lines of the app's file with settings replaced in place, and the names of these."""
    lines, assignments = own.text.splitlines(), _replaceable(own.text)
    changes: dict[int, list[str]] = {}
    placed, replaced = set[str](), set[int]()
    for setting in conf_lines:
        if (node := assignments.get(setting.name)) is None:
            continue
        placed.add(setting.name)
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        if _literal(node) != setting.value:
            replaced.add(node.lineno)
            changes[first] = [_was(lines[first:last]), str(setting)]
            changes.update((number, []) for number in range(first + 1, last))
        else:
            changes[first] = [*map(comment, setting.evidence), lines[first]]
    for number in _imports_for(own, replaced):
        changes[number] = [_was([lines[number]])]
    stores = _stores(own.text)
    for name, annotation in annotated(ast.Module(_statements(own.text), [])).items():
        if not stores[name]:
            number = annotation.lineno - 1
            remark = textwrap.indent(comment(ANNOTATED), " " * annotation.col_offset)
            changes.setdefault(number, [remark, lines[number]])
    for name, why in own.kept.items():
        if name in assignments and name not in placed:
            first = assignments[name].lineno - 1
            changes[first] = [comment(why), lines[first]]
        elif name not in placed:
            changes.setdefault(len(lines), []).append(comment(why))
    text = [line for number, old in enumerate(lines) for line in changes.get(number, [old])]
    return [*text, *changes.get(len(lines), ())], placed


def _was(lines: Iterable[str]) -> str:
    """The lines as a comment."""
    return textwrap.indent("\n".join(lines), "#      ").replace("#      ", "# Was: ", 1)


def _imports_for(own: OwnFile, replaced: Collection[int]) -> list[int]:
    """The lines, from 0, of imports that only the replaced statements (their lines) use."""
    statements = _statements(own.text)
    lines = Counter(node.lineno for node in statements)
    used: dict[bool, set[str]] = {True: set(), False: set(own.sets)}
    for node in statements:
        names = (child.id for child in ast.walk(node) if isinstance(child, ast.Name))
        used[node.lineno in replaced].update(names)
    return [
        node.lineno - 1
        for node in statements
        if isinstance(node, ast.Import | ast.ImportFrom)
        if lines[node.lineno] == 1 and node.end_lineno == node.lineno
        if {name.asname or name.name.partition(".")[0] for name in node.names}
        <= used[True] - used[False]
    ]


def _replaceable(text: str) -> dict[str, Assignment]:
    """The assignments that can be replaced in place, by name: top-level, on lines of their own, of
    a name that the file assigns only once; or annotations of a name that it never assigns."""
    body, stores = _statements(text), _stores(text)
    spans = [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in body]
    statements_on = Counter(line for span in spans for line in span)
    assignments = {}
    for node in body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name))
            ) if stores[name] == (node.value is not None):
                if statements_on[node.lineno] == statements_on[node.end_lineno or node.lineno] == 1:
                    assignments[name] = node
    return assignments


def _stores(text: str) -> Counter[str]:
    """How often the text assigns each name; an annotation without a value does not."""
    nodes = [node for statement in _statements(text) for node in ast.walk(statement)]
    annotations = [node.target for node in nodes
                   if isinstance(node, ast.AnnAssign) and node.value is None]  # fmt: skip
    return Counter(
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if node not in annotations
    )


def _statements(text: str) -> list[ast.stmt]:
    """The top-level statements; none if the text is not Python."""
    try:
        return ast.parse(text).body
    except SyntaxError:
        return []


def _literal(node: Assignment | None) -> object:
    """The assigned value if it is a literal; else None."""
    try:
        return ast.literal_eval(node.value) if node and node.value else None
    except ValueError:
        return None


def _to_be_read(
    server: Server, own: OwnFile, lines: Sequence[str], starts_in: str | None
) -> Iterator[str]:
    """The lines of the app's file, preceded by what it may need when it is read, as in the
    measurement: the app's directory on the import path, `__file__`, environment variables."""
    needed, chdir = [], server.app.chdir
    if chdir != (starts_in or "") and _imports_from(own.text, Path(chdir)):
        needed.append(f"__import__('sys').path.insert(0, {server.app.chdir!r})")
    if "__file__" in own.text and own.path:
        needed.append(f"__file__ = {own.path!r}")
    if "environ" in own.text or "getenv" in own.text:
        needed += [f"__import__('os').environ.setdefault({name!r}, {value!r})"
                   for name, value in server.app.env]  # fmt: skip
    if needed:
        needed.insert(0, "# Needed to read this file:")
    count = _opening_lines(own.text)
    yield from [*lines[:count], *needed, *lines[count:]]


def _imports_from(text: str, directory: Path) -> bool:
    """Whether the text imports a module or a package of this directory."""
    nodes = [node for statement in _statements(text) for node in ast.walk(statement)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    places = (directory / name.partition(".")[0] for name in names if name)
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def _opening_lines(text: str) -> int:
    """The number of lines up to the last `from __future__` import, or else of the docstring."""
    count = 0
    for number, node in enumerate(_statements(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) if number == 0:
                count = node.end_lineno or 0
            case ast.ImportFrom(module="__future__"):
                count = node.end_lineno or 0
    return count
