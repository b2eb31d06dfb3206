"""Reads a Gunicorn file: which line sets what, and which worker class it selects."""

import ast
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab.errors import UsageError
from workerlab.finding import Finding
from workerlab.notes import is_literal
from workerlab.server.worker_classes import WORKER_CLASSES

PATHS = {
    path: row.name for row in WORKER_CLASSES.values() for path in (row.path, row.alias) if path
}
MIN_SIMILARITY = 0.8  # of a name and its possible misspelling
# Settings that do nothing unless one of these is used, according to Gunicorn's source. A custom
# `logger_class` may do anything. With `keyfile` alone, Gunicorn tries TLS without a certificate.
_TLS = dict.fromkeys(
    ("ca_certs", "cert_reqs", "ciphers", "do_handshake_on_connect", "suppress_ragged_eofs"),
    ("certfile", "keyfile"),
)
_SYSLOG = ("syslog_addr", "syslog_prefix", "syslog_facility", "disable_redirect_access_to_syslog")
NEEDS: Mapping[str, tuple[str, ...]] = {
    "access_log_format": ("accesslog", "logconfig", "logconfig_dict", "logconfig_json", "syslog",
                          "logger_class"),
    "capture_output": ("errorlog", "logger_class"),
    "statsd_prefix": ("statsd_host", "logger_class"),
    "dogstatsd_tags": ("statsd_host", "logger_class"),
    "max_requests_jitter": ("max_requests",),
    "reload_engine": ("reload",),
    "reload_extra_files": ("reload",),
    "proxy_allow_ips": ("proxy_protocol",),
    "keyfile": ("certfile",),
    **_TLS,
    **dict.fromkeys(_SYSLOG, ("syslog", "logger_class")),
}  # fmt: skip
# Values that leave a setting unused: for any setting, and for these
UNUSED = (None, False, 0, "", "off")
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "errorlog": ("-",),
    "logger_class": ("gunicorn.glogging.Logger", "gunicorn.instrument.statsd.Statsd"),
}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
GUNICORN_URI = "egg:gunicorn#"  # optional prefix of a class's name


class FileLine(Struct, frozen=True):
    """The line that gives a name its final value. `number` counts from 1; `text`: the value of a
    setting; `source`: how the file computes it, "" for a plain value; `used`: whether the file
    itself uses or imports the name; `sets`: False if it is only annotated. `annotated`: line and
    text of an annotation that is not a type (`threads: 4`) and sets nothing. `overridden`: earlier
    lines whose value line `by` discards; `is_setting`: whether Gunicorn has such a setting."""

    number: int
    name: str
    text: str
    used: bool = False
    sets: bool = True
    source: str = ""
    overridden: tuple[int, ...] = ()
    by: int = 0
    is_setting: bool = False
    annotated: tuple[int, str] | None = None


class SourceFile:
    """A Gunicorn file in Python. Raises UsageError if it cannot be read or parsed."""

    def __init__(self, path: Path) -> None:
        try:
            self._source = path.read_text()
            self._tree = ast.parse(self._source)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read as a Gunicorn file: {error}") from error
        except SyntaxError as error:
            raise UsageError(
                f"{path} cannot be read as a Gunicorn file: line {error.lineno}: {error.msg}"
            ) from error

    def lines(
        self, assignments: Mapping[str, Mapping[str, Any]], settings: Collection[str]
    ) -> tuple[FileLine, ...]:
        """The names that the file sets, and those that it only annotates, by line. `assignments`:
        from its execution (see `Interpreter`); `settings`: all of Gunicorn's."""
        used_names = self._used_names()
        lines = [self._line(name, assignment, name in settings, name in used_names)
                 for name, assignment in assignments.items()]  # fmt: skip
        return tuple(sorted(lines, key=lambda line: line.number))

    def _line(
        self, name: str, assignment: Mapping[str, Any], is_setting: bool, used: bool
    ) -> FileLine:
        statement, value = self._statement_at(assignment["line"]), assignment["text"]
        literal = self._text_of(getattr(statement, "value", None))
        if is_literal(literal):  # as the file writes it: 0o22, not 18
            value = literal if repr(ast.literal_eval(literal)) == value else value
        is_star = isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
        is_plain = isinstance(statement, SCOPES) or not assignment["sets"]
        is_plain |= is_literal(literal) and _assigns_names(statement)
        source = self._text_of(statement) if is_setting and not is_plain else ""
        return FileLine(
            number=assignment["line"],
            name=name,
            text=value,
            used=used or is_star,
            sets=assignment["sets"],
            source=source,
            overridden=tuple(assignment["overridden"]),
            by=assignment["by"],
            is_setting=is_setting,
            annotated=(pair[0], pair[1]) if (pair := assignment["annotated"]) else None,
        )

    def _used_names(self) -> set[str]:
        """Names that the file reads, imports, or defines as a class."""
        names: set[str] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ClassDef):
                names.add(node.name)
        return names

    def _statement_at(self, number: int) -> ast.stmt:
        """The innermost statement at a line."""
        statements = [
            (node.end_lineno - node.lineno, node)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.stmt) and node.end_lineno
            if node.lineno <= number <= node.end_lineno
        ]
        return min(statements, key=lambda pair: pair[0])[1]

    def _text_of(self, node: ast.AST | None) -> str:
        """The source of a node on one line; only the first line of a compound statement."""
        text = ast.get_source_segment(self._source, node) if node else None
        line = (text or "").partition("\n")[0] if hasattr(node, "body") else text or ""
        return " ".join(line.split())


def _assigns_names(statement: ast.stmt) -> bool:
    """Whether the statement assigns to names, alone or in tuples."""
    if isinstance(statement, ast.Assign):
        nodes = (node for target in statement.targets for node in ast.walk(target))
        return not any(isinstance(node, (ast.Subscript, ast.Attribute)) for node in nodes)
    return isinstance(statement, ast.AnnAssign)


class UnknownName(Finding):
    """line {line}: {setting} is not a Gunicorn setting, and the file does not use it
    [[; did you mean {meant}?]]"""

    line: int
    setting: str
    meant: str


def unknown_names(lines: Iterable[FileLine], settings: Collection[str]) -> dict[str, str]:
    """Names that are not Gunicorn settings and that the file does not use, each with the likely
    setting or ""."""
    return {
        line.name: similar_name(line.name, settings)
        for line in lines
        if line.sets and not line.used and line.name not in settings
    }


def similar_name(name: str, names: Collection[str]) -> str:
    """The name that this one may be a misspelling of; "" if unclear."""
    longer = [other for other in names if other.startswith(f"{name}_")]
    matches = longer if len(longer) == 1 else get_close_matches(name, names, 1, MIN_SIMILARITY)
    return next(iter(matches), "")


def check_class(name: str, classes: Collection[str], location: str) -> None:
    """Raises UsageError if `name` is neither a dotted path nor one of `classes`. `location`: the
    file and line that select it."""
    if name.isidentifier() and name not in classes:
        similar = similar_name(name, classes)
        advice = f"; did you mean {similar}?" if similar else f"; choose from {', '.join(classes)}"
        raise UsageError(f'{location}: worker_class "{name}" is unknown{advice}')


def class_of(settings: Mapping[str, object]) -> str:
    """The worker class that a file with these settings selects, by the lab's name; sync with
    multiple threads is gthread. An unknown dotted path is returned unchanged."""
    configured = str(settings.get("worker_class") or "sync").removeprefix(GUNICORN_URI)
    name = PATHS.get(configured, configured)
    threads = settings.get("threads")
    return "gthread" if name == "sync" and isinstance(threads, int) and threads > 1 else name
