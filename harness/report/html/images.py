"""Every figure of a report as PNG and SVG, in light, for what is not a browser."""

from __future__ import annotations

from collections.abc import Iterator

import vl_convert

from harness.model import Report
from harness.report.html.charts import of_cell, of_run
from harness.report.html.figures import Figure, picture
from harness.report.html.members import groups, seen

SCALE = 2.0


def images(report: Report) -> Iterator[tuple[str, bytes]]:
    """(file name, content), one figure after the other."""
    found = of_run(report)
    for group in groups(report):
        for cell, view in seen(group, report):
            found += of_cell(group, cell, view)
    for figure in found:
        yield from drawn(figure)


def drawn(figure: Figure) -> Iterator[tuple[str, bytes]]:
    """(file name, content) of one figure."""
    svg: str = vl_convert.vegalite_to_svg(picture(figure))
    yield f"{figure.name}.svg", svg.encode()
    png: bytes = vl_convert.svg_to_png(svg, scale=SCALE)
    yield f"{figure.name}.png", png
