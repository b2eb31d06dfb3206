"""A browser without a screen, and pages to open in it. Skipped where there is no browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from workerlab.experiments.reading import document_of
from workerlab.model.result import Document
from workerlab.report.html.page import render

ROOT = Path(__file__).resolve().parents[2]
# In order of preference: Chromium without windows takes a fifth less CPU in these tests
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
FLAGS = (
    "--no-sandbox",  # root, as in most containers, has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WINDOW = {"width": 1200, "height": 900}
# About ten pictures a second: sixty take 40 % more CPU, which others that run beside it need
SLOW_DISPLAY = """(() => {
    const next = window.requestAnimationFrame.bind(window);
    window.requestAnimationFrame = (draw) => setTimeout(() => next(draw), 80);
    window.cancelAnimationFrame = clearTimeout;
})()"""
LONG_MS = 240_000.0  # a bound for hanging, not an expectation of speed
OPEN_DRAWN = """() => document.documentElement.dataset.ready !== undefined
    && [...document.querySelectorAll('.chart')]
        .filter((element) => !element.closest('details:not([open])'))
        .every((one) => one.dataset.drawn === 'whole')"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        program = next((path for name in NAMES if (path := shutil.which(name))), None)
        if program is None and not own.is_file():
            pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH")
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS])
        yield browser
        browser.close()


class Windows:
    """A page for documents with scripts and one for those without, for all tests of a process: a
    document in a context of its own takes three times as much CPU to open, most of it for a new
    process of the browser that compiles the same scripts again."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.pages: dict[bool, Any] = {}

    def blank(
        self,
        viewport: dict[str, int] = WINDOW,
        color_scheme: str = "light",
        java_script_enabled: bool = True,
    ) -> Any:
        """A page that shows nothing, and has nothing left of what it showed before."""
        if java_script_enabled not in self.pages:
            context = self.browser.new_context(java_script_enabled=java_script_enabled)
            context.set_default_timeout(LONG_MS)
            self.pages[java_script_enabled] = context.new_page()
        page = self.pages[java_script_enabled]
        page.goto("about:blank")
        page.set_viewport_size(viewport)
        page.emulate_media(media="null", color_scheme=color_scheme)
        page.mouse.move(0, 0)  # a pointer that rests on a chart would show its words
        return page


def listen(page: Any, complaints: list[str]) -> dict[str, Callable[..., object]]:
    """Add what goes wrong in the page to `complaints`. Returns the listeners by event."""
    listeners: dict[str, Callable[..., object]] = {
        "console": lambda message: complaints.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: complaints.append(str(error)),
        "dialog": lambda dialog: (complaints.append(dialog.message), dialog.dismiss()),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    return listeners


class Opened:
    """A document in a page, and all that went wrong in it. `page`: Playwright's."""

    def __init__(self, page: Any, path: Path, scripts: bool) -> None:
        self.page, self.path = page, path
        self.foreign_requests: list[str] = []  # requests to anywhere else
        self.complaints: list[str] = []
        self.listeners = listen(page, self.complaints)
        page.route("**/*", self._route)
        page.goto(path.as_uri())
        if scripts:
            self.drawn()

    def close(self) -> None:
        """The page is left as it was before."""
        self.page.unroute_all()
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)

    def _route(self, route: Any) -> None:
        if route.request.url == self.path.as_uri():
            route.continue_()
        else:
            self.foreign_requests.append(route.request.url)
            route.abort()

    def drawn(self) -> None:
        """Wait until every chart that can be seen is there."""
        self.page.wait_for_function(OPEN_DRAWN)

    def open_all(self) -> None:
        self.page.evaluate(
            "document.querySelectorAll('details').forEach((element) => element.open = true)"
        )
        # A section tells that it was opened only after this
        self.page.wait_for_function(
            "[...document.querySelectorAll('.chart')]"
            ".every((element) => element.dataset.drawn === 'whole')"
        )

    def marks(self, chart: str, name: str) -> int:
        """How many marks of that name a chart has."""
        count: int = self.page.locator(f"[data-chart='{chart}'] g.{name}_marks > *").count()
        return count


def serious(page: Any) -> list[str]:
    """What axe has against it. Skips where there is no axe."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    violations = axe.run(page).response["violations"]
    return [
        violation["id"]
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ]


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def windows(browser: Any) -> Windows:
    return Windows(browser)


@pytest.fixture
def open_page(windows: Windows, tmp_path: Path) -> Iterator[Open]:
    """Opens a document, or a file, in a page with these options, in place of the one before."""
    with ExitStack() as stack:

        def opened(what: Document | Path, **options: Any) -> Opened:
            path = what
            if isinstance(what, Document):
                path = tmp_path / "report.html"
                path.write_text(render(what), encoding="utf-8")
            stack.close()
            page = windows.blank(**options)
            opened_page = Opened(page, path, options.get("java_script_enabled", True))
            stack.callback(opened_page.close)
            return opened_page

        yield opened


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the pages are kept."""
    named = os.environ.get("WORKERLAB_SCREENSHOTS")
    place = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    place.mkdir(parents=True, exist_ok=True)
    return place


def lab(place: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "workerlab", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT / "harness")},
        check=True,
        capture_output=True,
        timeout=300,
    )


@pytest.fixture(scope="session")
def measured(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Document, Path]:
    """A run of the lab with real servers, and its page made by the command."""
    place = tmp_path_factory.mktemp("run")
    words = ("--workers", "2", "--sleep", "0.5", "--tool", "fast", "--rounds", "5")
    lab(place, "sweep", "sync,gthread", "6", *words)
    (run,) = (place / "results").iterdir()
    lab(place, "report", str(run), "--html", "page.html")
    return document_of(run), place / "page.html"
