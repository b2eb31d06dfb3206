"""Slots and queue while a step of the lesson runs, as the terminal shows them."""

import time

from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from workerlab.analysis.handshakes import half_open
from workerlab.model import ConnectionSample, Plan, Trial
from workerlab.observe.kernel import CountersSample
from workerlab.observe.observer import Observer
from workerlab.observe.spans import Live
from workerlab.plan import load_for
from workerlab.server.running import Running
from workerlab.server.worker_classes import class_named
from workerlab.terminal.picture import draw, fitting_width

REDRAW_S = 0.1
UNANSWERED = "SYN_SENT"  # the kernel's name for a client's socket that nobody has answered


class Picture:
    """Redrawn in place on a terminal, else drawn once at the end of the step, as it was in the
    middle of its load."""

    def __init__(self, plan: Plan, one: Trial, delay_s: float, at_once: int | None) -> None:
        """`at_once`: requests that can be in the app; None: without limit."""
        self._cell, self._load, self._at_once = one.cell, load_for(plan, one.cell, delay_s), at_once
        self._live: Live | None = None
        self._observer: Observer | None = None
        self._began = self._drawn = 0.0
        self._before: int | None = None  # SYNs that had been sent again before this load
        self._middle: list[str] = []
        self._width = fitting_width()
        console = Console(color_system=None, highlight=False, width=self._width)
        self._screen: Screen | None = None
        if console.is_terminal:
            self._screen = Screen(console=console, auto_refresh=False, transient=False)
            self._screen.__enter__()
            self._show([f"{'':10}starting {self._cell.server.worker_class} ..."])

    def close(self) -> None:
        if self._screen is not None:
            if self._live is not None and self._observer is not None:
                self._draw(self._live, self._observer)  # as it was when the last one was answered
            self._screen.stop()
        elif self._middle:
            print("\n".join(self._middle), flush=True)

    def look(self, server: Running, observer: Observer) -> None:
        """Called again and again while the load runs."""
        at = time.monotonic()
        if self._live is None:
            self._live, self._began = Live(server.launch.trial), at
            self._observer = observer
        if at - self._drawn >= REDRAW_S:
            self._draw(self._live, observer)

    def _draw(self, live: Live, observer: Observer) -> None:
        self._drawn = at = time.monotonic()
        busy, answered = live.look()
        no_room, repeated = self._dropped(observer) if self._load.drops else (None, None)
        lines = draw(
            at - self._began,
            busy=tuple(busy.values()),
            slots=self._at_once,
            queue=observer.latest_queue,
            connections=self._cell.concurrency,
            answered=answered,
            requests=None if self._load.rate_rps else self._load.requests,
            accepts_first=class_named(self._cell.server.worker_class).accepts_first,
            no_room=no_room,
            repeated=repeated,
            width=self._width,
        )
        expected = self._load.duration_s * self._load.rate_rps if self._load.rate_rps else None
        if answered <= (expected or self._load.requests) / 2:
            self._middle = lines
        self._show(lines)

    def _dropped(self, observer: Observer) -> tuple[int, int | None]:
        """Connections that nobody has answered, or that exist for their client alone; and how often
        a SYN was sent again."""
        seen, counters = observer.latest.get("connections"), observer.latest.get("counters")
        no_room = 0
        if isinstance(seen, ConnectionSample):
            no_room = seen.client.get(UNANSWERED, 0) + half_open(seen)
        if not isinstance(counters, CountersSample):
            return no_room, None
        count = counters.counts.get("syn_retransmits")
        self._before = count if self._before is None else self._before
        return no_room, None if count is None else count - (self._before or 0)

    def _show(self, lines: list[str]) -> None:
        if self._screen is not None:
            self._screen.update(Text("\n".join(lines)), refresh=True)
