"""The file that `advise` writes: for Gunicorn a gunicorn.conf.py with the settings, each with a
comment that gives the reason; for another server a script with its command line.

It works as is: `gunicorn -c FILE`, from the app's directory if Gunicorn is likely to be started
there, else from any. If the app has its own Gunicorn file, the new file is a copy of it with as few
changes as possible: settings with another value are replaced in place, and the old line is kept as
a comment; other settings are appended.
"""

import ast
import shlex
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from workerlab.model.plan import Server
from workerlab.server.backends import BACKENDS
from workerlab.server.inside.introspect import bare_annotations
from workerlab.server.worker_classes import class_named

COMMENT_WIDTH = 92  # characters
HOST, PORT = "127.0.0.1", 8000  # Gunicorn's default
Assignment = ast.Assign | ast.AnnAssign
OVERRIDING = "These override the assignments above:"
ANNOTATED = "No effect, since an annotation sets nothing:"


class OwnFile(Struct, dict=True, frozen=True):
    """The app's own Gunicorn file; the text is empty if there is none. `setting_names`: the
    settings in it; `remarks`: by the name of a setting that stays unchanged but needs one."""

    text: str = ""
    path: str = ""
    setting_names: Sequence[str] = ()
    remarks: Mapping[str, str] = {}

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """The top-level statements; none if the text is not Python."""
        try:
            return ast.parse(self.text).body
        except SyntaxError:
            return []

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [node for statement in self.statements for node in ast.walk(statement)]

    @cached_property
    def assignment_counts(self) -> Counter[str]:
        """The number of assignments to each name; an annotation without a value is not one."""
        annotations = [node.target for node in self.nodes
                       if isinstance(node, ast.AnnAssign) and node.value is None]  # fmt: skip
        return Counter(
            node.id
            for node in self.nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if node not in annotations
        )

    @cached_property
    def separate_statements(self) -> list[ast.stmt]:
        """The statements that share no line with another."""
        spans = {node: range(node.lineno, (node.end_lineno or node.lineno) + 1)
                 for node in self.statements}  # fmt: skip
        count = Counter(line for span in spans.values() for line in span)
        return [node for node, span in spans.items() if count[span[0]] == count[span[-1]] == 1]

    @cached_property
    def assignments(self) -> dict[str, Assignment]:
        """The assignments that can be replaced in place, by name: top-level, on lines of their own,
        to a name that is assigned only once; or annotations of a name that is never assigned."""
        assignments = {}
        for node in self.separate_statements:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ) if self.assignment_counts[name] == (node.value is not None):
                    assignments[name] = node
        return assignments

    def imports_from(self, directory: Path) -> bool:
        """Whether the text imports a module or a package from this directory."""
        names = [alias.name for node in self.nodes if isinstance(node, ast.Import)
                 for alias in node.names]  # fmt: skip
        names += [node.module or "" for node in self.nodes if isinstance(node, ast.ImportFrom)]
        paths = (directory / name.partition(".")[0] for name in names if name)
        return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)

    def imports_for(self, replaced: Collection[ast.stmt]) -> Iterator[ast.stmt]:
        """The imports, on lines of their own, that only the replaced statements use."""
        used: dict[bool, set[str]] = {True: set(), False: set(self.setting_names)}
        for node in self.statements:
            names = (child.id for child in ast.walk(node) if isinstance(child, ast.Name))
            used[node in replaced].update(names)
        for node in self.separate_statements:
            if isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno == node.lineno:
                imported = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
                if imported <= used[True] - used[False]:
                    yield node

    def opening_line_count(self) -> int:
        """The number of lines up to the last `from __future__` import, or else of the docstring."""
        count = 0
        for number, node in enumerate(self.statements):
            match node:
                case ast.Expr(value=ast.Constant(value=str())) if number == 0:
                    count = node.end_lineno or 0
                case ast.ImportFrom(module="__future__"):
                    count = node.end_lineno or 0
        return count


NO_FILE = OwnFile()


class ConfLine(Struct, frozen=True):
    """A setting in the file, with the reason as a comment. `evidence`: sentences above it."""

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
    """A shell script that starts a server other than Gunicorn as it was measured, on Gunicorn's
    default address. `python`: the server's interpreter."""
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
    server: Server, own: OwnFile, grace_s: int | None, starts_in: str | None
) -> Iterator[tuple[str, object, str]]:
    """(name, value, reason) of the measured settings that the server's worker class uses. `threads`
    is also included if the class ignores it but the app's own file sets it, since sync with more
    than one thread would be gthread; `backlog` only if that file sets it. Parameters: as for
    `conf_file`."""
    worker_class, app = class_named(server.worker_class), server.app
    yield "worker_class", worker_class.path or worker_class.name, "chosen for the target above"
    yield "workers", server.workers, "processes"
    if "threads" not in worker_class.ignores:
        slots = server.workers * server.threads
        yield "threads", server.threads, f"of each worker: {slots} requests at once"
    elif "threads" in own.setting_names:
        why = f"{worker_class.name} uses none, and sync with more than one would be gthread"
        yield "threads", server.threads, why
    if "worker_connections" not in worker_class.ignores:
        yield "worker_connections", server.worker_connections, "at most, per worker"
    if "backlog" in own.setting_names and "backlog" not in worker_class.ignores:
        yield "backlog", server.backlog, "maximum number of waiting connections"
    if grace_s is not None:
        why = "seconds: stopping after a load takes this long, and cuts off longer requests"
        yield "graceful_timeout", grace_s, why
    if app.chdir and starts_in is None:
        yield "chdir", app.chdir, "the app's directory, so Gunicorn can be started from anywhere"
    if app.target:
        condition = ", if Gunicorn is started in its directory" if starts_in == app.chdir else ""
        yield "wsgi_app", app.target, f"the app{condition}"


def conf_file(
    server: Server,
    evidence: Sequence[str],
    own: OwnFile = NO_FILE,
    *,
    grace_s: int | None = None,
    starts_in: str | None = None,
) -> str:
    """The text of the file. `evidence`: sentences; `grace_s`: graceful_timeout, None to leave it
    unset; `starts_in`: as in AdviseRequest."""
    env = [f"{name}={value}" for name, value in server.app.env]
    conf_lines = [
        ConfLine(name, value, why, evidence if name == "worker_class" else ())
        for name, value, why in settings(server, own, grace_s, starts_in)
    ]
    own_env = _literal(own.assignments.get("raw_env")) if "raw_env" in own.setting_names else ()
    own_env = (own_env,) if isinstance(own_env, str) else own_env
    if env and isinstance(own_env, list | tuple):
        conf_lines.append(ConfLine("raw_env", [*own_env, *env], "environment of the app"))
    lines = list(_with_preamble(server, own, merged(own, conf_lines), starts_in))
    conf_lines = [setting for setting in conf_lines if setting.name not in own.assignments]
    overriding = [setting for setting in conf_lines if own.assignment_counts[setting.name]]
    appended = [str(setting) for setting in conf_lines if setting not in overriding]
    lines += ["", *appended] if lines and appended else appended
    if overriding:
        lines += ["", comment(OVERRIDING), *map(str, overriding)]
    if env and not isinstance(own_env, list | tuple):  # the app's file computes it; may be a string
        lines.append("_env = [raw_env] if isinstance(raw_env, str) else raw_env")
        lines.append(f"raw_env = [*_env, *{env!r}]  # environment of the app")
    return "\n".join(lines) + "\n"


# --- the app's own file ---------------------------------------------------------------------------


def merged(own: OwnFile, conf_lines: Iterable[ConfLine]) -> list[str]:
    """The lines of the app's file, with settings replaced in place."""
    lines, setting_by_name = own.text.splitlines(), {line.name: line for line in conf_lines}
    changes: dict[int, list[str]] = {}
    replaced: list[ast.stmt] = []
    for name, node in own.assignments.items():
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        if (setting := setting_by_name.get(name)) is None:
            if name in own.remarks:
                changes[first] = [comment(own.remarks[name]), lines[first]]
        elif _literal(node) != setting.value:
            replaced.append(node)
            changes[first] = [_as_comment(lines[first:last]), str(setting)]
            changes.update((number, []) for number in range(first + 1, last))
        else:
            changes[first] = [*map(comment, setting.evidence), lines[first]]
    for statement in own.imports_for(replaced):
        changes[statement.lineno - 1] = [_as_comment([lines[statement.lineno - 1]])]
    for name, annotation in bare_annotations(ast.Module(own.statements, [])).items():
        if not own.assignment_counts[name]:
            number = annotation.lineno - 1
            remark = textwrap.indent(comment(ANNOTATED), " " * annotation.col_offset)
            changes.setdefault(number, [remark, lines[number]])
    return [
        *(line for number, old in enumerate(lines) for line in changes.get(number, [old])),
        *(comment(why) for name, why in own.remarks.items() if name not in own.assignments),
    ]


def _as_comment(lines: Iterable[str]) -> str:
    """The replaced lines as a comment."""
    return textwrap.indent("\n".join(lines), "#      ").replace("#      ", "# Was: ", 1)


def _literal(node: Assignment | None) -> object:
    """The assigned value if it is a literal; else None."""
    try:
        return ast.literal_eval(node.value) if node and node.value else None
    except ValueError:
        return None


def _with_preamble(
    server: Server, own: OwnFile, lines: Sequence[str], starts_in: str | None
) -> Iterator[str]:
    """The lines of the app's file, with the context that they may need and had in the
    measurement: the app's directory on the import path, `__file__`, environment variables."""
    preamble, chdir = [], server.app.chdir
    if chdir != (starts_in or "") and own.imports_from(Path(chdir)):
        preamble.append(f"__import__('sys').path.insert(0, {server.app.chdir!r})")
    if "__file__" in own.text and own.path:
        preamble.append(f"__file__ = {own.path!r}")
    if "environ" in own.text or "getenv" in own.text:
        preamble += [f"__import__('os').environ.setdefault({name!r}, {value!r})"
                   for name, value in server.app.env]  # fmt: skip
    if preamble:
        preamble.insert(0, "# Needed to read this file:")
    count = own.opening_line_count()
    yield from [*lines[:count], *preamble, *lines[count:]]
