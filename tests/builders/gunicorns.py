"""Fake installations of Gunicorn, of any version: only the files that the lab reads."""

from __future__ import annotations

from pathlib import Path

CLASSES = ("sync",)
WORKERS = "SUPPORTED_WORKERS = {'sync': 'gunicorn.workers.sync.SyncWorker'}\n"


def files_of(version: str, app: str = "", requires: str = ">=3.10") -> dict[str, str]:
    """Contents by path below site-packages. `app`: the code that starting Gunicorn runs."""
    return {
        "gunicorn/__init__.py": f"__version__ = {version!r}\n",
        "gunicorn/app/__init__.py": "",
        "gunicorn/app/wsgiapp.py": app,
        "gunicorn/workers/__init__.py": WORKERS,
        f"gunicorn-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: gunicorn\nVersion: {version}\n"
            f"Requires-Python: {requires}\n"
        ),
    }


def install(packages: Path, version: str) -> None:
    for name, content in files_of(version).items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(content)
