"""Markdown to HTML that is safe to show: markdown-it without raw HTML, and what comes out through
nh3, which keeps a list of harmless elements and drops the rest."""

from __future__ import annotations

import nh3
from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def rendered(text: str) -> str:
    """HTML without scripts, whatever `text` holds."""
    return nh3.clean(_MARKDOWN.render(text))
