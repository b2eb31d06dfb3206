"""Where the bundled apps and Gunicorn files are: inside an installed workerlab, or in its checkout.

A wheel carries the top-level directories `apps` and `configs` of the checkout as data, in
`workerlab/bundled`: as packages of their own they would collide with a project's. An app of them is
named `@NAME`, which is no name of any module.
"""

from pathlib import Path

from workerlab.model import App

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "bundled"
_CHECKOUT = _PACKAGE.parents[1]
EVERY_CLASS = "25.3.0"  # of Gunicorn, serves them: the last release with every worker class
# The modules below apps/ that have an `app`
APPS = ("sleep_wsgi", "sleep_asgi", "sleep_flask", "blocking_asgi", "imported_sleep", "blog.wsgi",
        "blog.asgi")  # fmt: skip


def bundled_root() -> Path:
    """The directory that holds `apps` and `configs`."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def target_of(name: str) -> str:
    """What Gunicorn takes for `@NAME`, in the directory `bundled_root()` or a copy of it."""
    return f"apps.{name.removeprefix('@')}:app"


def name_of(target: str) -> str | None:
    """`@NAME` of such a target, with or without `:app`; None: it is none of a bundled app."""
    return next((f"@{one}" for one in APPS if target_of(one) in (target, f"{target}:app")), None)


def label_of(app: App) -> str:
    """As `--app` takes it."""
    return app.target if app.chdir else name_of(app.target) or app.target
