"""Every chart of a study as PNG and SVG, in light, for what is not a browser."""

from __future__ import annotations

from collections.abc import Iterator

from harness.model import Document
from harness.report.html.images import drawn
from harness.report.study.figures import figures


def images(study: Document) -> Iterator[tuple[str, bytes]]:
    """(file name, content), one figure after the other."""
    for figure in figures(study):
        yield from drawn(figure)
