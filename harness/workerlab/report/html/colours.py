"""One meaning, one colour, in light and in dark: for the page, its charts and its pictures.

Waiting is warm, being served is blue: the hues of Okabe & Ito, "Color Universal Design" (2008),
which people with any kind of colour blindness tell apart. Classes have hues of their own (after
P. Tol, "Colour Schemes", 2021) and a shape each, so that no chart is read by colour alone.

A chart names its colours as CSS variables, so that one drawing follows the page's theme; for a
picture, which knows no variables, they are put in.
"""

import re
from collections.abc import Mapping

# name: (light, dark)
COLOURS: Mapping[str, tuple[str, str]] = {
    # the page
    "paper": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "ink": ("#1b1f24", "#e6e9ee"),
    "soft": ("#545d68", "#a9b2bf"),
    "line": ("#d5dae1", "#363d48"),
    "link": ("#0b5cad", "#7fb8f0"),
    # where a request is
    "connect": ("#d55e00", "#f0813a"),
    "accept-queue": ("#e69f00", "#f2b632"),
    "in-worker": ("#cc79a7", "#e19bc2"),
    "service": ("#0072b2", "#3d9bd9"),
    "transfer": ("#009e73", "#2cc199"),
    "unattributed": ("#8d949e", "#78818d"),
    "waiting": ("#f6d38a", "#7d5f1c"),  # somewhere before the app
    # levels of one thing
    "bound": ("#c3cad4", "#474f5c"),
    "prediction": ("#8a96a6", "#7d8899"),
    "measured": ("#2c3a4d", "#d3dae4"),
    "sockets": ("#5b7089", "#8fa6c0"),
    # classes
    "class-1": ("#332288", "#a99bf5"),
    "class-2": ("#117733", "#62c47f"),
    "class-3": ("#aa4499", "#e08fd3"),
    "class-4": ("#2a8f82", "#6fd6c4"),
    "class-5": ("#882255", "#ea7fae"),
    "class-6": ("#7d7d1a", "#cfcf66"),
    "class-7": ("#3f75b0", "#96c0ee"),
}
CLASSES = tuple(name for name in COLOURS if name.startswith("class-"))

_VARIABLE = re.compile(r"var\(--([a-z0-9-]+)\)")


def var(name: str) -> str:
    """A colour as a chart names it. KeyError for one that is not in the table."""
    assert name in COLOURS, name
    return f"var(--{name})"


def css(theme: int) -> str:
    """The variables of a theme, 0 light or 1 dark, as declarations."""
    return "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items())


def in_light(text: str) -> str:
    """A text with its variables put in, as on white paper."""
    return _VARIABLE.sub(lambda match: COLOURS[match[1]][0], text)
