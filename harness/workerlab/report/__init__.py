"""A document in every format: `FORMATS["markdown"](document)`. A new one: a module, a line here."""

from collections.abc import Callable, Mapping
from importlib import import_module

from workerlab.model import Document


def _of(module: str) -> Callable[[Document], str]:
    """What renders a document, imported when there is one."""
    return lambda document: import_module(f"{__name__}.{module}").render(document)


FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": _of("text"),
    "json": _of("json"),
    "csv": _of("csv"),
    "markdown": _of("markdown"),
}  # each: the whole document, ending in a newline
