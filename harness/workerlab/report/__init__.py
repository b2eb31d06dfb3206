"""Output formats: `FORMATS["markdown"](document)`. To add one, add a module, and a function and a
line here. A format's module is imported when a document is rendered."""

from collections.abc import Callable, Mapping

from workerlab.model.result import Document


def _text(document: Document) -> str:
    from workerlab.report.text import render

    return render(document)


def _json(document: Document) -> str:
    from workerlab.report.json import render

    return render(document)


def _csv(document: Document) -> str:
    from workerlab.report.csv import render

    return render(document)


def _markdown(document: Document) -> str:
    from workerlab.report.markdown import render

    return render(document)


FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": _text,
    "json": _json,
    "csv": _csv,
    "markdown": _markdown,
}  # each returns the whole document, ending with a newline
