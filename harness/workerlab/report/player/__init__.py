"""What plays a trace in a browser: the picture of requests on their way, for the live page, for a
recorded lesson and for the report page. Scripts that need nothing else, and share one name: Lab."""

from pathlib import Path

PLACE = Path(__file__).parent
SCRIPTS = ("places.js", "crowd.js", "frame.js", "scene.js", "player.js", "charts.js")  # in order
STYLE = "live.css"  # of classes that all begin with lab-


def scripts() -> list[str]:
    return [(PLACE / name).read_text(encoding="utf-8") for name in SCRIPTS]


def style() -> str:
    return (PLACE / STYLE).read_text(encoding="utf-8")
