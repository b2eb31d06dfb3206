"""A page parsed without a browser."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from workerlab.model.result import Document
from workerlab.report.html.page import render


class Page(HTMLParser):
    """Elements with their attributes, texts, scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles = ""
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside = tag
            self.scripts += [(dict(attrs), "")] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif self.inside == "style":
            self.styles += data
        else:
            self.texts.append(data)

    def json(self, name: str) -> Any:
        (text,) = [text for attributes, text in self.scripts if attributes.get("id") == name]
        return json.loads(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def rendered(document: Document) -> Page:
    return Page(render(document))
