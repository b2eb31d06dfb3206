"""Output formats: `FORMATS["markdown"](document)`. To add one, add a module and a line here."""

from collections.abc import Callable, Mapping
from importlib import import_module

from workerlab.model.result import Document


def _renderer(module: str) -> Callable[[Document], str]:
    """The `render` function of `module`, which is imported when a document is rendered."""
    return lambda document: import_module(f"{__name__}.{module}").render(document)


FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": _renderer("text"),
    "json": _renderer("json"),
    "csv": _renderer("csv"),
    "markdown": _renderer("markdown"),
}  # each returns the whole document, ending with a newline
