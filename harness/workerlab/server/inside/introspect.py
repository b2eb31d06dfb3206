"""Describes the interpreter that will serve the app. Run there as a program, by path:

    /path/to/venv/bin/python introspect.py REQUEST          (working directory: the app's)

REQUEST is a JSON object: `config` (the user's Gunicorn file, or null), `packages` (names to
import), `classes` (dotted paths of worker classes) and `bases` (by name of an ancestor, whether
such a class serves ASGI). Prints one JSON object: `gunicorn` (its version, null if not installed),
`worker_classes` (names of Gunicorn's own), `names` (of its settings, if there is a file), `missing`
(packages), `classes` (by path: `asgi`, whether it serves ASGI, null if not known; `error`, why it
cannot be imported), `settings` (of the user's file, if JSON can express them), `assignments` (what
the file assigned when executed, see `Assignments`), `absent` (missing paths and accounts that
Gunicorn needs to start, by setting), `error` (why the file cannot be read), `python` (its
version), `pip` (whether it is installed) and `requires` (Python versions supported by Gunicorn,
null if not known). Stdlib only, syntax of Python 3.10: the harness is not installed there.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import grp
import importlib.metadata
import importlib.util
import json
import os
import pwd
import sys
import types
from collections.abc import Collection
from typing import Any

# Settings whose validators depend on where, and as which user, Gunicorn is started
ENVIRONMENT_DEPENDENT = {"chdir", "user", "group", "reload_extra_files"}
PARSED_LATER = {"bind": "address", "raw_env": "env"}  # settings: the property that parses them


def is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def worker_class(path: str, bases: dict[str, bool]) -> dict[str, Any]:
    """The entry of `classes` for a dotted path."""
    module, _, name = path.rpartition(".")
    if not module:
        return {"asgi": None, "error": "it is not a dotted path"}
    try:
        cls = getattr(importlib.import_module(module), name)
    except BaseException as error:  # a module may do anything, sys.exit included
        return {"asgi": None, "error": f"{type(error).__name__}: {error}"}
    if not isinstance(cls, type) or not hasattr(cls, "init_process"):
        return {"asgi": None, "error": "it is not a Gunicorn worker class"}
    names = (base.__name__ for base in cls.__mro__)
    return {"asgi": next((bases[name] for name in names if name in bases), None)}


def rejection(names: dict[str, Any]) -> str | None:
    """Gunicorn's message about the first value that it rejects; None if it accepts all."""
    try:
        from gunicorn.config import Config
    except ImportError:  # another package of that name
        return None
    config = Config()
    for name, value in names.items():
        if name in config.settings and name not in ENVIRONMENT_DEPENDENT:
            try:
                config.set(name, value)
            except Exception as error:  # raised by its validators
                return f"Gunicorn rejects {name} = {value!r}: {error}"
    for name in filter(names.__contains__, PARSED_LATER):  # if set: bind's default uses $PORT
        try:
            getattr(config, PARSED_LATER[name])
        except Exception as error:
            return f"Gunicorn rejects {name} = {value_text(name, names[name])}: {error}"
    return None


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Assignments:
    """The lines of a file that assigned its names when it was executed. A call of `record` is
    inserted after each statement, so branches, loops, `globals()` and star imports count as they
    ran. Tracing would slow down everything that the file imports."""

    RECORDER = "__workerlab_record__"

    def __init__(self, namespace: dict[str, Any], annotations: dict[str, ast.AnnAssign]) -> None:
        self._namespace, self._annotations = namespace, annotations
        self._previous: dict[str, Any] = dict(namespace)
        # By name: sequences of lines; each begins with a line that does not use the earlier value
        self._lines: dict[str, list[list[int]]] = {}

    def record(self, line: int, stored: dict[str, int], used: list[str]) -> None:
        """Called after a statement. `stored`: names that it stores, with their lines; `used`: names
        that it reads."""
        current = dict(self._namespace)
        changed = [name for name in current if current[name] is not self._previous.get(name, self)]
        for name in {**dict.fromkeys(changed), **stored}:
            number, sequences = stored.get(name, line), self._lines.setdefault(name, [[]])
            if name in used or not sequences[-1]:
                sequences[-1] += [number] if sequences[-1][-1:] != [number] else []
            elif sequences[-1] != [number]:
                sequences.append([number])
        self._previous = current

    def of(self, settings: Collection[str]) -> dict[str, dict[str, Any]]:
        """By name. `line`: the last that assigned it; `overridden`: earlier lines without effect on
        the value, and `by`: the line that overrode them; `text`: the value of one of `settings`;
        `sets`: False for a name that is only annotated, `text` is then the annotation; `annotated`:
        line and text of the annotation, if the name has no value or the annotation is a constant
        (`threads: 4`); otherwise None."""
        assignments = {
            name: {"line": node.lineno, "overridden": [], "by": node.lineno, "sets": False,
                   "text": (text := ast.unparse(node.annotation)), "annotated": [node.lineno, text]}
            for name, node in self._annotations.items()
        }  # fmt: skip
        for name, value in self._namespace.items():
            if name in self._lines and not name.startswith("_"):
                *earlier, last = self._lines[name]
                overridden = {line for lines in earlier for line in lines}.difference(last)
                text = value_text(name, value) if name in settings else ""
                node = self._annotations.get(name)
                is_value = node is not None and isinstance(node.annotation, ast.Constant)
                annotated = assignments[name]["annotated"] if is_value else None
                assignments[name] = {"line": last[-1], "overridden": sorted(overridden),
                                     "by": last[0], "text": text, "sets": True,
                                     "annotated": annotated}  # fmt: skip
        return assignments


def bare_annotations(node: ast.AST) -> dict[str, ast.AnnAssign]:
    """The annotations without a value (`threads: 4`), which set nothing, outside of functions and
    classes, by name."""
    annotations: dict[str, ast.AnnAssign] = {}
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            annotations |= {child.target.id: child} if child.value is None else {}
        elif not isinstance(child, SCOPES):
            annotations |= bare_annotations(child)
    return annotations


def value_text(name: str, value: Any) -> str:
    """The value as source text, "" for a function. Only the names of `raw_env`: its values may be
    secrets."""
    if callable(value):
        return ""
    if name == "raw_env" and isinstance(value, (list, tuple)):
        value = [f"{str(pair).partition('=')[0]}=..." for pair in value]
    return repr(value)


def with_recording(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements, with a call of `Assignments.record` after each."""
    statements: list[ast.stmt] = []
    for statement in body:
        statements.append(statement)
        inner = [] if isinstance(statement, SCOPES) else [*filter(None, blocks(statement))]
        recording = recording_call(statement.lineno, *stored_and_used(statement, inner))
        for block in inner:  # a loop or `with` assigns its names before its block
            block[:] = [recording, *with_recording(block)]
        is_first = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_first |= isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not inner and not is_first:  # a docstring and imports from __future__ stay together
            statements.append(recording)
    return statements


def stored_and_used(
    statement: ast.stmt, inner: list[list[ast.stmt]]
) -> tuple[dict[str, int], list[str]]:
    """The names that a statement stores, with their lines, and those that it reads, without those
    in its blocks `inner`."""
    if isinstance(statement, SCOPES):
        return {statement.name: statement.lineno}, []
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        aliases = [alias for alias in statement.names if alias.name != "*"]
        return {alias.asname or alias.name.partition(".")[0]: alias.lineno
                for alias in aliases}, []  # fmt: skip
    roots: list[ast.AST] = [nested for block in inner for nested in block]
    roots += [node.target for node in ast.walk(statement) if isinstance(node, ast.comprehension)]
    excluded = {node for root in roots for node in ast.walk(root)}
    names = [node for node in ast.walk(statement)
             if isinstance(node, ast.Name) and node not in excluded]  # fmt: skip
    stored = {node.id: node.lineno for node in names if isinstance(node.ctx, ast.Store)}
    used = [node.id for node in names if isinstance(node.ctx, ast.Load)]
    if isinstance(statement, ast.AugAssign):
        used += stored
    is_annotation = isinstance(statement, ast.AnnAssign) and statement.value is None
    return {} if is_annotation else stored, used


def blocks(statement: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of a compound statement."""
    names = ("body", "orelse", "finalbody")
    branches = [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    own = [getattr(statement, name, []) for name in names]
    return own + [block for branch in branches for block in blocks(branch)]


def recording_call(line: int, stored: dict[str, int], used: list[str]) -> ast.stmt:
    source = f"{Assignments.RECORDER}({line}, {stored!r}, {used!r})"
    (statement,) = ast.parse(source).body
    for node in ast.walk(statement):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = node.end_lineno = line
    return statement


def execute_file(path: str) -> tuple[dict[str, Any], Assignments]:
    """The names that a Gunicorn file sets, read as Gunicorn does, and the lines that set them."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    annotations = bare_annotations(tree)
    tree.body = with_recording(tree.body)
    module = sys.modules["__config__"] = types.ModuleType("__config__")  # as Gunicorn does
    names, module.__file__ = module.__dict__, path
    assignments = Assignments(names, annotations)
    names[Assignments.RECORDER] = assignments.record
    exec(compile(tree, path, "exec"), names)
    return names, assignments


# What Gunicorn needs to start: a directory, a file, the directory of a file, or an account
DIRECTORIES = ("chdir", "worker_tmp_dir")
READ_FILES = ("certfile", "logconfig")
WRITTEN_FILES = ("accesslog", "errorlog", "pidfile")
ACCOUNTS = {"user": pwd.getpwnam, "group": grp.getgrnam}


def absent(settings: dict[str, Any]) -> dict[str, str]:
    """The paths and accounts that do not exist, by setting."""
    missing = {}
    for name in (*DIRECTORIES, *READ_FILES, *WRITTEN_FILES):
        value = settings.get(name)
        if not isinstance(value, str) or value in ("", "-"):
            continue
        path = os.path.dirname(value) or "." if name in WRITTEN_FILES else value
        exists = os.path.isfile if name in READ_FILES else os.path.isdir
        if not exists(os.path.join(settings.get("chdir") or "", path)):
            missing[name] = path
    for name, entry_of in ACCOUNTS.items():
        value = settings.get(name)
        if isinstance(value, str) and value and not value.isdigit():
            try:
                entry_of(value)
            except KeyError:
                missing[name] = value
    return missing


def settings_of(names: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in names.items():
        if not name.startswith("_") and isinstance(value, (str, int, float, bool, type(None))):
            settings[name] = value
        elif name == "bind" and isinstance(value, (list, tuple)):
            settings[name] = [str(address) for address in value]
        elif name == "worker_class" and isinstance(value, type):
            settings[name] = f"{value.__module__}.{value.__qualname__}"
    return settings


def main(request: dict[str, Any]) -> None:
    gc.disable()  # this process is short-lived
    facts: dict[str, Any] = {"gunicorn": None, "worker_classes": [], "names": [], "missing": []}
    facts.update(classes={}, settings={}, error=None, python=sys.version.split()[0], requires=None)
    facts.update(assignments={}, absent={})
    facts["pip"] = not is_missing("pip")
    # As Gunicorn does: the user's file and classes may be in the app's directory
    sys.path.insert(0, "")
    if not is_missing("gunicorn"):
        import gunicorn
        from gunicorn.workers import SUPPORTED_WORKERS

        facts.update(gunicorn=gunicorn.__version__, worker_classes=list(SUPPORTED_WORKERS))
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a checkout
            facts["requires"] = importlib.metadata.metadata("gunicorn")["Requires-Python"]
        facts["missing"] = [name for name in request["packages"] if is_missing(name)]
        facts["classes"] = {
            name: worker_class(SUPPORTED_WORKERS.get(name, name), request["bases"])
            for name in request["classes"]
        }
    if request["config"]:
        with contextlib.suppress(ImportError):  # another package of that name, or none
            from gunicorn.config import make_settings

            facts["names"] = sorted(make_settings())
        try:
            names, assignments = execute_file(request["config"])
            settings = settings_of(names)
            facts.update(settings=settings, error=rejection(names), absent=absent(settings))
            facts["assignments"] = assignments.of(facts["names"])
        except BaseException as error:  # a config file may do anything, sys.exit included
            facts["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(facts))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
