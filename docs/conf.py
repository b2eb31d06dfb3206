"""The docs as a site with search: `tox -e docs`. The pages stay Markdown that GitHub shows, too."""

import lzma
import re
from pathlib import Path

from sphinx.application import Sphinx

from workerlab import __version__
from workerlab.experiments.lesson.steps import read_lesson
from workerlab.experiments.live.recording import rebuild_page

project = "workerlab"
author = "The workerlab authors"
project_copyright = f"2026, {author}"
version = release = __version__

extensions = ["myst_parser"]
myst_heading_anchors = 4  # named as GitHub names them
highlight_language = "none"  # most is what a program printed
html_theme = "furo"
html_title = f"workerlab {version}"
linkcheck_ignore = [r"http://127\.0\.0\.1", r".*/workerlab/(compare|releases)/"]  # before a release


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """At the root of the site, with links to the pages' Markdown there."""
    if app.builder.name == "html" and error is None:
        text = Path(app.srcdir, "..", "llms.txt").read_text(encoding="utf-8")
        text = re.sub(r"\(docs/([\w-]+\.md)\)", r"(_sources/\1.txt)", text)
        Path(app.outdir, "llms.txt").write_text(text, encoding="utf-8")


def write_lesson(app: Sphinx, error: Exception | None) -> None:
    """The recorded bundled lesson, as a page with the current code and texts. To record it again,
    on an idle machine: `workerlab live --record docs/lesson.html && xz -9ef docs/lesson.html`
    """
    if app.builder.name == "html" and error is None:
        recorded = lzma.decompress(Path(app.srcdir, "lesson.html.xz").read_bytes()).decode()
        page = rebuild_page(recorded, read_lesson())
        Path(app.outdir, "lesson.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write_llms_txt)
    app.connect("build-finished", write_lesson)
