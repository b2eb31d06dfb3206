"""Every figure of a document as PNG and SVG, in the light theme, for use outside the page."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import vl_convert

from workerlab.model import Document
from workerlab.report.html.figure import DASHES, Figure, Key, config, in_light_colours, layer, var
from workerlab.report.html.page import figures

WIDTH = 760  # pixels
PNG_SCALE = 2.0
CHARACTER_WIDTH = 6.6  # pixels, in a legend
LINE_HEIGHT = 22  # pixels, in a legend


def pictures(document: Document) -> Iterator[tuple[str, bytes]]:
    """Yields (file name, content): an SVG and a PNG per figure."""
    for figure in figures(document):
        svg: str = vl_convert.vegalite_to_svg(picture(figure))
        yield f"{figure.name}.svg", svg.encode()
        png: bytes = vl_convert.svg_to_png(svg, scale=PNG_SCALE)
        yield f"{figure.name}.png", png


def picture(figure: Figure) -> dict[str, Any]:
    """The figure as one standalone Vega-Lite specification: light, fixed width, titled."""
    panes = [pane.properties(width=WIDTH) for pane in figure.panes]
    above = [_legend(figure.legend)] if figure.legend else []
    title = alt.TitleParams(text=figure.title)
    chart = alt.vconcat(*above, *panes, spacing=8, title=title).resolve_scale(
        color="independent", strokeDash="independent"
    )
    specification: dict[str, Any] = _without_links(chart.to_dict())
    specification |= {"config": {**config(), "background": var("paper")}, "padding": 14}
    return dict(json.loads(in_light_colours(json.dumps(specification))))


def _without_links(node: Any) -> Any:
    """Removes links, as their targets are on the page only."""
    if isinstance(node, dict):
        return {name: _without_links(inner) for name, inner in node.items() if name != "href"}
    return [_without_links(inner) for inner in node] if isinstance(node, list) else node


def _legend(keys: Sequence[Key]) -> Any:
    """A row of symbols and labels, wrapped at the width of the image."""
    x, row, layers = 0.0, 0, []
    for key in keys:
        key_width = 34 + CHARACTER_WIDTH * len(key.label)
        if x and x + key_width > WIDTH:
            x, row = 0.0, row + 1
        base = layer("", "x end y", [(x, x + 18, row)])
        colour, dash = var(key.colour), DASHES.get(key.shape)
        if dash:
            symbol = base.mark_rule(color=colour, strokeWidth=2, strokeDash=dash).encode(x2="end:Q")
        else:
            shape = "square" if key.shape == "box" else key.shape
            symbol = base.mark_point(shape=shape, size=110, xOffset=9, filled=True, opacity=1)
            symbol = symbol.encode(color=alt.value(colour))
        label = base.mark_text(text=key.label, align="left", baseline="middle", dx=25)
        layers += [symbol, label]
        x += key_width
    x_scale, y_scale = alt.Scale(domain=[0, WIDTH]), alt.Scale(domain=[row + 0.5, -0.5])
    return (
        alt.layer(*layers)
        .encode(alt.X("x:Q", scale=x_scale, axis=None), alt.Y("y:Q", scale=y_scale, axis=None))
        .properties(width=WIDTH, height=LINE_HEIGHT * (row + 1))
    )
