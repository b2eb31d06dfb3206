"""A headless browser and pages in it. Without a browser, these tests are skipped."""

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
# In order of preference: the headless shell uses a fifth less CPU in these tests
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome",
            "google-chrome-stable")  # fmt: skip
FLAGS = (
    "--no-sandbox",  # it does not work as root, as in most containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WINDOW = {"width": 1200, "height": 900}
# About ten frames a second: sixty take 40 % more CPU
SLOW_DISPLAY = """(() => {
    const next = window.requestAnimationFrame.bind(window);
    window.requestAnimationFrame = (draw) => setTimeout(() => next(draw), 80);
    window.cancelAnimationFrame = clearTimeout;
})()"""
TIMEOUT_MS = 240_000.0  # for hangs, not an expected duration
OPEN_DRAWN = """() => document.documentElement.dataset.ready !== undefined
    && [...document.querySelectorAll('.chart')]
        .filter((element) => !element.closest('details:not([open])'))
        .every((element) => element.dataset.drawn === 'whole')"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        bundled = Path(playwright.chromium.executable_path)
        program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
        if program is None and not bundled.is_file():
            pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is on PATH")
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS])
        yield browser
        browser.close()


class Windows:
    """One page with JavaScript and one without, shared by all tests of a process: opening each
    document in a context of its own takes three times the CPU, mostly for a new browser process
    that compiles the same scripts again."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.pages: dict[bool, Any] = {}

    def blank(
        self,
        viewport: dict[str, int] = WINDOW,
        color_scheme: str = "light",
        java_script_enabled: bool = True,
    ) -> Any:
        """An empty page in its initial state."""
        if java_script_enabled not in self.pages:
            context = self.browser.new_context(java_script_enabled=java_script_enabled)
            context.set_default_timeout(TIMEOUT_MS)
            self.pages[java_script_enabled] = context.new_page()
        page = self.pages[java_script_enabled]
        page.goto("about:blank")
        page.set_viewport_size(viewport)
        page.emulate_media(media="null", color_scheme=color_scheme)
        page.mouse.move(0, 0)  # a pointer over a chart would show its tooltip
        return page


def listen(page: Any, complaints: list[str]) -> dict[str, Callable[..., object]]:
    """Add errors, dialogs and console messages to `complaints`. Returns the listeners by event."""
    listeners: dict[str, Callable[..., object]] = {
        "console": lambda message: complaints.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: complaints.append(str(error)),
        "dialog": lambda dialog: (complaints.append(dialog.message), dialog.dismiss()),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    return listeners


class Opened:
    """A document in a page (Playwright's). `complaints`: messages and errors of the page;
    `foreign_requests`: URLs that it requested, except its own."""

    def __init__(self, page: Any, path: Path, scripts: bool) -> None:
        self.page, self.path = page, path
        self.foreign_requests: list[str] = []
        self.complaints: list[str] = []
        self.listeners = listen(page, self.complaints)
        page.route("**/*", self._route)
        page.goto(path.as_uri())
        if scripts:
            page.wait_for_function(OPEN_DRAWN)

    def close(self) -> None:
        """Restore the page."""
        self.page.unroute_all()
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)

    def _route(self, route: Any) -> None:
        if route.request.url == self.path.as_uri():
            route.continue_()
        else:
            self.foreign_requests.append(route.request.url)
            route.abort()

    def open_all(self) -> None:
        """Open all sections and wait for their charts, which are drawn asynchronously."""
        self.page.evaluate(
            "document.querySelectorAll('details').forEach((element) => element.open = true)"
        )
        self.page.wait_for_function(
            "[...document.querySelectorAll('.chart')]"
            ".every((element) => element.dataset.drawn === 'whole')"
        )

    def marks(self, chart: str, name: str) -> int:
        """The number of marks of that name in a chart."""
        count: int = self.page.locator(f"[data-chart='{chart}'] g.{name}_marks > *").count()
        return count


def serious(page: Any) -> list[str]:
    """Serious and critical violations that axe finds. Without axe, the test is skipped."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    violations = axe.run(page).response["violations"]
    return [entry["id"] for entry in violations if entry["impact"] in ("serious", "critical")]


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def windows(browser: Any) -> Windows:
    return Windows(browser)


@pytest.fixture
def open_page(windows: Windows, tmp_path: Path) -> Iterator[Open]:
    """Opens a document or a file with the given page options; replaces the previous one. None may
    log messages or request other URLs."""
    documents: list[Opened] = []
    with ExitStack() as stack:

        def open_document(source: Document | Path, **options: Any) -> Opened:
            path = source
            if isinstance(source, Document):
                path = tmp_path / "report.html"
                path.write_text(render(source), encoding="utf-8")
            stack.close()
            page = windows.blank(**options)
            opened = Opened(page, path, options.get("java_script_enabled", True))
            stack.callback(opened.close)
            documents.append(opened)
            return opened

        yield open_document
    for opened in documents:
        assert opened.complaints == []
        assert opened.foreign_requests == []


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for screenshots: that of WORKERLAB_SCREENSHOTS, or a temporary one."""
    configured = os.environ.get("WORKERLAB_SCREENSHOTS")
    directory = Path(configured) if configured else tmp_path_factory.mktemp("screenshots")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def measured(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Document, Path]:
    """A run with real servers, and the page that `workerlab report` creates from it."""
    directory = tmp_path_factory.mktemp("run")

    def lab(*arguments: str) -> None:
        argv = [sys.executable, "-m", "workerlab", *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
        subprocess.run(argv, cwd=directory, env=env, check=True, capture_output=True, timeout=300)

    options = ("--workers", "2", "--sleep", "0.5", "--tool", "fast", "--rounds", "5")
    lab("sweep", "sync,gthread", "6", *options)
    (run,) = (directory / "results").iterdir()
    lab("report", str(run), "--html", "page.html")
    return document_of(run), directory / "page.html"
