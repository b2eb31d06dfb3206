"""Reads a Gunicorn file: which line sets what, and which worker class it selects."""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from workerlab.model import UsageError
from workerlab.server.worker_classes import WORKER_CLASSES

# Gunicorn's classes by dotted path, and uvicorn's deprecated package
PATHS = {
    "gunicorn.workers.sync.SyncWorker": "sync",
    "gunicorn.workers.gthread.ThreadWorker": "gthread",
    "gunicorn.workers.geventlet.EventletWorker": "eventlet",
    "gunicorn.workers.ggevent.GeventWorker": "gevent",
    "gunicorn.workers.gtornado.TornadoWorker": "tornado",
    "gunicorn.workers.gasgi.ASGIWorker": "asgi",
    "uvicorn.workers.UvicornWorker": "uvicorn",
    **{row.path: row.name for row in WORKER_CLASSES.values() if row.path},
}
SIMILAR_NAMES = 0.8  # similarity at which a name may be a misspelling
TEXT_COLUMNS = 40  # of a value; the rest is cut off


class FileLine(Struct, frozen=True):
    """The last line that sets a name. `number` counts from 1; `text`: the value as written, on one
    line; `used`: whether the file itself uses or imports the name. `sets`: False for an annotation
    without a value (`threads: 4`), which sets nothing."""

    number: int
    name: str
    text: str
    used: bool = False
    sets: bool = True


def lines_of(path: Path) -> tuple[FileLine, ...]:
    """The names the file sets, in order: at its top level, also within `if`, `try`, `with`, `for`.
    Raises UsageError if the file cannot be read or is not Python."""
    try:
        source = path.read_text()
        tree = ast.parse(source)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a Gunicorn file: {error}") from error
    except SyntaxError as error:
        raise UsageError(
            f"{path} cannot be read as a Gunicorn file: line {error.lineno}: {error.msg}"
        ) from error
    last: dict[str, FileLine] = {}
    for line in _set_by(tree.body, source):
        if line.sets or line.name not in last:
            last[line.name] = line
    used = {
        node.id for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    }  # fmt: skip
    lines = (replace(line, used=line.used or line.name in used) for line in last.values())
    return tuple(sorted(lines, key=lambda line: line.number))


def _set_by(body: list[ast.stmt], source: str) -> Iterator[FileLine]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield FileLine(statement.lineno, statement.name, "")
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            yield from _assigned(statement, source)
        elif isinstance(statement, ast.ImportFrom):
            text = shorten(ast.get_source_segment(source, statement) or "", TEXT_COLUMNS)
            for alias in statement.names:
                yield FileLine(alias.lineno, alias.asname or alias.name, text, used=True)
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For)):
                yield from _set_by(getattr(statement, inner, []), source)
        for handler in getattr(statement, "handlers", []):
            yield from _set_by(handler.body, source)


def _assigned(
    statement: ast.Assign | ast.AnnAssign | ast.AugAssign, source: str
) -> Iterator[FileLine]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    value: ast.AST | None = statement.value
    sets = value is not None
    if isinstance(statement, ast.AugAssign):
        value = statement  # `workers *= 2`: its value alone is not that of the setting
    elif isinstance(statement, ast.AnnAssign):
        value = value or statement.annotation
    segment = ast.get_source_segment(source, value) if value else None
    text = shorten(segment or "", TEXT_COLUMNS)
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield FileLine(statement.lineno, node.id, text, sets=sets)


def strange(lines: Iterable[FileLine], settings: Collection[str]) -> dict[str, str]:
    """Names that are not Gunicorn settings and that the file does not use, each with the likely
    setting or ""."""
    names = [
        line.name for line in lines if line.sets and not line.used and not line.name.startswith("_")
    ]
    return {name: _meant(name, settings) for name in names if name not in settings}


def shorten(text: str, columns: int) -> str:
    """The text on one line of at most `columns`."""
    line = " ".join(text.split())
    return line if len(line) <= columns else f"{line[: columns - 1]}…"


def _meant(name: str, settings: Collection[str]) -> str:
    longer = [setting for setting in settings if setting.startswith(f"{name}_")]
    matches = longer if len(longer) == 1 else get_close_matches(name, settings, 1, SIMILAR_NAMES)
    return next(iter(matches), "")


def class_of(settings: Mapping[str, object]) -> str:
    """The worker class that a file with these settings selects, by the lab's name; sync with
    several threads is gthread. An unknown dotted path is returned as it is."""
    configured = str(settings.get("worker_class") or "sync")
    name = PATHS.get(configured, configured)
    threads = settings.get("threads")
    return "gthread" if name == "sync" and isinstance(threads, int) and threads > 1 else name
