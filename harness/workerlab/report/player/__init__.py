"""The browser player of traces, and where each request was (`places.py`). It animates requests on
the live page, in recorded lessons and on the report page. Its scripts have no dependencies and
share one global name, Lab."""

from pathlib import Path

PLACE = Path(__file__).parent
SCRIPTS = ("places.js", "crowd.js", "frame.js", "scene.js", "player.js", "charts.js")  # in order
STYLE = "live.css"  # its class names begin with lab-


def scripts() -> list[str]:
    return [(PLACE / name).read_text(encoding="utf-8") for name in SCRIPTS]


def style() -> str:
    return (PLACE / STYLE).read_text(encoding="utf-8")
