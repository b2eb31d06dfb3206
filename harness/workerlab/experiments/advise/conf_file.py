"""The gunicorn.conf.py that `advise` writes: settings, and the evidence as comments.

It starts as it is: `gunicorn -c FILE`, from any directory. Where the app has a Gunicorn file of its
own, that file's text comes first, unchanged but for a line that lets it find its neighbours, and
what was found follows, so that it wins.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

from msgspec import Struct

from workerlab.model import Server
from workerlab.server.worker_classes import class_named

COLUMNS = 92


class OwnFile(Struct, frozen=True):
    """The app's Gunicorn file, and which settings it makes; none where the text is empty."""

    text: str = ""
    path: str = ""
    sets: Sequence[str] = ()


NONE = OwnFile()


def comment(text: str) -> str:
    """As many lines as it takes."""
    return "\n".join(f"# {line}" for line in wrap(text, COLUMNS))


def settings(server: Server, own: Sequence[str] = ()) -> list[tuple[str, object]]:
    """What a server is started with, by the names that its worker class heeds, or that the app's
    own Gunicorn file sets (`own`): what was measured wins."""
    row = class_named(server.worker_class)
    found: list[tuple[str, object]] = []
    if "bind" not in own:
        found.append(("bind", "127.0.0.1:8000"))
    found += [("worker_class", row.path or row.name), ("workers", server.workers)]
    for name in ("threads", "worker_connections"):
        if name not in row.ignores or name in own:
            found.append((name, getattr(server, name)))
    if "backlog" in own:
        found.append(("backlog", server.backlog))
    if server.app.chdir:
        found.append(("chdir", server.app.chdir))
    if server.app.target:
        found.append(("wsgi_app", server.app.target))
    return found


def conf_file(server: Server, evidence: Sequence[str], own: OwnFile = NONE) -> str:
    """`evidence`: sentences."""
    lines = [_own_text(server, own).rstrip() + "\n\n"] if own.text else []
    lines += [comment(sentence) for sentence in evidence]
    lines.append("")
    lines += [f"{name} = {value!r}" for name, value in settings(server, own.sets)]
    lines += _env(server, own)
    return "\n".join(lines) + "\n"


def _env(server: Server, own: OwnFile) -> Iterator[str]:
    """On top of the own file's, which may be a single string."""
    env = [f"{name}={value}" for name, value in server.app.env]
    if env and own.text:
        yield "_env = globals().get('raw_env') or []"
        yield f"raw_env = [*([_env] if isinstance(_env, str) else _env), *{env!r}]"
    elif env:
        yield f"raw_env = {env!r}"


def _own_text(server: Server, own: OwnFile) -> str:
    """With what it may ask for while it is read, as it was when the app was measured: modules
    beside the app, its own place, the environment."""
    before = []
    if re.search(r"^\s*(import|from)\s", own.text, re.MULTILINE) and server.app.chdir:
        before.append(f"__import__('sys').path.insert(0, {server.app.chdir!r})")
    if "__file__" in own.text and own.path:
        before.append(f"__file__ = {own.path!r}")
    if "environ" in own.text or "getenv" in own.text:
        before += [f"__import__('os').environ.setdefault({name!r}, {value!r})"
                   for name, value in server.app.env]  # fmt: skip
    lines = own.text.splitlines()
    place = _after_future(own.text)
    return "\n".join([*lines[:place], *before, *lines[place:]])


def _after_future(text: str) -> int:
    """The number of lines up to the last `from __future__`, which nothing may precede."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return 0
    ends = [one.end_lineno or 0 for one in body
            if isinstance(one, ast.ImportFrom) and one.module == "__future__"]  # fmt: skip
    return max(ends, default=0)
