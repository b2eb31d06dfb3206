"""The browser player of traces, and the places of requests (`places.py`). It animates requests on
the live page, in recorded lessons and on the report page. Its scripts have no dependencies and
share one global name, Lab."""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

PLACE = Path(__file__).parent
SCRIPTS = ("places.js", "crowd.js", "frame.js", "scene.js", "player.js", "charts.js")  # in order
UNSAFE_EVAL = "'unsafe-eval' "
STYLE = "live.css"  # its class names begin with lab-


def scripts() -> list[str]:
    return [(PLACE / name).read_text(encoding="utf-8") for name in SCRIPTS]


def style() -> str:
    return (PLACE / STYLE).read_text(encoding="utf-8")


def content_policy(scripts: Iterable[str], *, evaluates: bool = False) -> str:
    """The Content-Security-Policy of a page that loads nothing and runs only these scripts.
    `evaluates`: whether they may compile code."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        f" script-src {UNSAFE_EVAL if evaluates else ''}{hashes}"
    )
