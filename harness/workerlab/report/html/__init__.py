"""Writes a document as an HTML page or as images. Drawing libraries are imported on demand."""

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.model.result import Document
from workerlab.paths import write_atomically

MISSING_PACKAGES = (
    "the report page needs Altair, vl-convert and Jinja2 ({}); install them with"
    " `pip install 'workerlab[page]'`"
)


def write_page(document: Document, path: Path) -> None:
    """Writes one self-contained HTML file.

    Raises UsageError if `path` cannot be written, EnvironmentProblem if a package is missing.
    """
    check_writable(path.parent)
    _write([(path, _page().render(document).encode(errors="replace"))])


def check_page(path: Path) -> None:
    """Raises the errors of `write_page`, before a document exists."""
    check_writable(path.parent)
    _page()


def write_pictures(document: Document, directory: Path) -> list[Path]:
    """Writes each chart as PNG and SVG to `directory`, which is created if its parent exists.
    Returns the paths. Raises the same errors as `write_page`."""
    check_writable(directory.parent)
    images = _page().pictures(document)
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be created: {error.strerror}") from error
    return _write((directory / name, data) for name, data in images)


def _page() -> Any:
    try:
        return import_module("workerlab.report.html.page")
    except ImportError as error:
        raise EnvironmentProblem(MISSING_PACKAGES.format(error)) from error


def check_writable(directory: Path) -> None:
    """Raises UsageError unless `directory` is writable; call it before drawing."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory")
    if not os.access(directory, os.W_OK):
        raise UsageError(f"{directory} cannot be written to")


def _write(files: Iterable[tuple[Path, bytes]]) -> list[Path]:
    """Writes each file atomically. Returns the paths."""
    paths = []
    for path, data in files:
        try:
            write_atomically(path, data)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
        paths.append(path)
    return paths
