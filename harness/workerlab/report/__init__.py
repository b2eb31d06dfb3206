"""Output formats: `FORMATS["markdown"](document)`. To add one, add a module and a line here."""

from collections.abc import Callable, Mapping
from importlib import import_module

from workerlab.model import Document


def _of(module: str) -> Callable[[Document], str]:
    """The `render` function of `module`, which is imported when a document is rendered."""
    return lambda document: import_module(f"{__name__}.{module}").render(document)


FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": _of("text"),
    "json": _of("json"),
    "csv": _of("csv"),
    "markdown": _of("markdown"),
}  # each returns the whole document, ending with a newline
