"""The gunicorn.conf.py that `advise` writes: settings, and the evidence as comments.

It starts as it is: `gunicorn -c FILE`, from any directory. Where the app has a Gunicorn file of its
own, that file's text comes first, unchanged, and what was found follows, so that it wins.
"""

from collections.abc import Sequence
from textwrap import wrap

from harness.model import Server
from harness.server.worker_classes import class_named

COLUMNS = 92


def comment(text: str) -> str:
    """As many lines as it takes."""
    return "\n".join(f"# {line}" for line in wrap(text, COLUMNS))


def settings(server: Server, own: Sequence[str] = ()) -> list[tuple[str, object]]:
    """What a server is started with, by the names that its worker class heeds. `own`: names that
    the app's own Gunicorn file sets."""
    row = class_named(server.worker_class)
    found: list[tuple[str, object]] = []
    if "bind" not in own:
        found.append(("bind", "127.0.0.1:8000"))
    found += [("worker_class", row.path or row.name), ("workers", server.workers)]
    for name in ("threads", "worker_connections"):
        if name not in row.ignores or name in own:
            found.append((name, getattr(server, name)))
    if server.app.chdir:
        found.append(("chdir", server.app.chdir))
    if server.app.target and "wsgi_app" not in own:
        found.append(("wsgi_app", server.app.target))
    return found


def conf_file(
    server: Server, evidence: Sequence[str], own_text: str = "", own: Sequence[str] = ()
) -> str:
    """`evidence`: sentences; `own_text`: of the app's own Gunicorn file."""
    lines = [own_text.rstrip() + "\n\n"] if own_text else []
    lines += [comment(sentence) for sentence in evidence]
    lines.append("")
    lines += [f"{name} = {value!r}" for name, value in settings(server, own)]
    if server.app.env:
        env = [f"{name}={value}" for name, value in server.app.env]
        kept = '*globals().get("raw_env", []), ' if own_text else ""
        lines.append(f"raw_env = [{kept}*{env!r}]" if kept else f"raw_env = {env!r}")
    return "\n".join(lines) + "\n"
