"""What surrounds the words and charts of a page: style, script, the drawing library, the policy.

Its content policy allows no address at all and only the scripts of this file, by their hash, so
that even text that slipped through escaping would neither run nor call out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import vl_convert

from harness.report.html.colours import css
from harness.report.html.figures import config

Charts = dict[str, list[dict[str, Any]]]  # the panes of each figure, by its name
HERE = Path(__file__).parent


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script. It hands out only the last: the bundle of
    vl-convert 1.9 exports the others as null."""
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def compact(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def frame(run: str, body: str, charts: Charts) -> str:
    """The whole page as text. `run` names it, `body` is HTML."""
    script = asset("page.js")
    return Template(asset("template.html")).substitute(
        title=escape(f"workerlab: {run}"),
        policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        f" script-src 'unsafe-eval' {_hash(library())} {_hash(script)}",
        light=css(0),
        dark=css(1),
        style=asset("style.css"),
        run=escape(run),
        body=body,
        charts=compact(charts),
        config=compact(config()),
        library=library(),
        script=script,
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
