"""Every figure of a document as PNG and SVG, in the light theme, for use outside the page."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import vl_convert

from workerlab.model import Document
from workerlab.report.html.figure import DASHES, Figure, Key, config, data, in_light, var
from workerlab.report.html.page import figures
from workerlab.report.values import text

WIDTH = 760
SCALE = 2.0
LETTER, LINE = 6.6, 22  # pixels of a legend: per character, per line


def pictures(document: Document) -> Iterator[tuple[str, bytes]]:
    """Yields (file name, content): an SVG and a PNG per figure."""
    for figure in figures(document):
        svg: str = vl_convert.vegalite_to_svg(picture(figure))
        yield f"{figure.name}.svg", svg.encode()
        png: bytes = vl_convert.svg_to_png(svg, scale=SCALE)
        yield f"{figure.name}.png", png


def picture(figure: Figure) -> dict[str, Any]:
    """The figure as one standalone Vega-Lite specification: light, fixed width, titled."""
    panes = [pane.properties(width=WIDTH) for pane in figure.panes]
    above = [_legend(figure.legend)] if figure.legend else []
    title = alt.TitleParams(text=text(figure.title))
    whole = alt.vconcat(*above, *panes, spacing=8, title=title).resolve_scale(
        color="independent", strokeDash="independent"
    )
    drawn: dict[str, Any] = _without_links(whole.to_dict())
    drawn |= {"config": {**config(), "background": var("paper")}, "padding": 14}
    return dict(json.loads(in_light(json.dumps(drawn))))


def _without_links(drawn: Any) -> Any:
    """Removes links, as their targets are on the page only."""
    if isinstance(drawn, dict):
        return {name: _without_links(inner) for name, inner in drawn.items() if name != "href"}
    return [_without_links(inner) for inner in drawn] if isinstance(drawn, list) else drawn


def _legend(keys: Sequence[Key]) -> Any:
    """A row of symbols and labels, wrapped at the width of the image."""
    x, line, marks = 0.0, 0, []
    for key in keys:
        wide = 34 + LETTER * len(text(key.label))
        if x and x + wide > WIDTH:
            x, line = 0.0, line + 1
        base = alt.Chart(data("x end y", [(x, x + 18, line)]))
        colour, dash = var(key.colour), DASHES.get(key.shape)
        if dash:
            sign = base.mark_rule(color=colour, strokeWidth=2, strokeDash=dash).encode(x2="end:Q")
        else:
            shape = "square" if key.shape == "box" else key.shape
            sign = base.mark_point(shape=shape, size=110, xOffset=9, filled=True, opacity=1)
            sign = sign.encode(color=alt.value(colour))
        name = base.mark_text(text=text(key.label), align="left", baseline="middle", dx=25)
        marks += [sign, name]
        x += wide
    across, down = alt.Scale(domain=[0, WIDTH]), alt.Scale(domain=[line + 0.5, -0.5])
    return (
        alt.layer(*marks)
        .encode(alt.X("x:Q", scale=across, axis=None), alt.Y("y:Q", scale=down, axis=None))
        .properties(width=WIDTH, height=LINE * (line + 1))
    )
