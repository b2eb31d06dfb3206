"""Where the bundled apps and Gunicorn files are: inside an installed workerlab, or in its checkout.

A wheel carries the top-level directories `apps` and `configs` of the checkout as data, in
`workerlab/bundled`: as packages of their own they would collide with a project's.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "bundled"
_CHECKOUT = _PACKAGE.parents[1]


def bundled_root() -> Path:
    """The directory that holds `apps` and `configs`."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
