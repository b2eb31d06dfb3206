"""A document in every format: `FORMATS["markdown"](document)`. A new one: a module, a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from harness.model import Document


def _later(module: str) -> Callable[[Document], str]:
    """What renders a document, imported when there is one."""

    def render(document: Document) -> str:
        text: str = import_module(f"{__name__}.{module}").render(document)
        return text

    return render


FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": _later("text"),
    "json": _later("json"),
    "csv": _later("csv"),
    "markdown": _later("markdown"),
}  # each: the whole document, ending in a newline
