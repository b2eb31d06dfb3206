"""The lesson on a terminal of up to 80 columns: paragraphs, guesses, pictures and the final table.

While a step runs, a picture shows slots and queues. After a load that overflowed the accept queue,
a chart shows the requests over time.

    3.2 s  in the app   [#] [#] [#] [#]          4 of 4 slots
           accept queue ooooo                    5
           no room      ~~~~~~~                  7, SYN retransmits: 12
           elsewhere                             0, on the way
           idle                                  0, with nothing to send
           answered                              9 of 32
"""

import textwrap
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from workerlab.analysis.facts import Facts
from workerlab.analysis.handshakes import half_open
from workerlab.analysis.samples import NS, Intervals
from workerlab.experiments.lesson.steps import LessonStep
from workerlab.experiments.lesson.texts import StepOutcome, score
from workerlab.model.evidence import ConnectionSample, QueueSample
from workerlab.model.plan import Plan, Trial
from workerlab.observe.observer import Observer
from workerlab.observe.spans import LiveCounts
from workerlab.observe.tcp import CountersSample
from workerlab.plan import load_for
from workerlab.server.running import Running
from workerlab.terminal.console import one_key, output_columns

MAX_WIDTH, MIN_WIDTH = 80, 30  # columns
NAME_WIDTH = 12
MARKS_WIDTH = 24  # boxes and marks
MARKS_START = 10 + NAME_WIDTH + 1  # their first column
CHART_NAME_WIDTH = 15
CHART_COLUMNS = MAX_WIDTH - CHART_NAME_WIDTH - 5
MARKS_HIDDEN = "boxes and marks hidden (terminal narrower than 80 columns)"
TEN_OR_MORE = "+"
UNKNOWN = "missing"


def draw(
    at_s: float,
    *,
    busy: Sequence[int],
    slots: int | None,
    queue: int | None,
    connections: int,
    answered: int,
    requests: int | None,
    accepts_first: bool,
    no_room: int | None = None,
    syn_retransmits: int | None = None,
    width: int = MAX_WIDTH,
) -> list[str]:
    """The lines of the picture, at most `width` long; no marks if narrower than MAX_WIDTH. `busy`:
    requests in the app, by worker; `slots`: of all workers, None: unlimited; `queue`: None if it
    cannot be read; `accepts_first`: requests in neither app nor queue wait inside a worker;
    `requests`: None for random arrivals, whose number is unknown; `no_room`: connections that do
    not fit into the accept queue, None if all fit; `syn_retransmits`: since the start."""
    in_app, limit = sum(busy), "unlimited" if slots is None else slots
    located = in_app + (queue or 0) + (no_room or 0)
    where = "accepted, not yet in the app" if accepts_first else "on the way, or not connected"
    lines = [
        _line(f"{at_s:6.1f} s", "in the app", _worker_boxes(busy), f"{in_app} of {limit} slots"),
        _line("", "accept queue", "o" * (queue or 0), UNKNOWN if queue is None else queue),
    ]
    if no_room is not None:
        where = "on the way"
        count = UNKNOWN if syn_retransmits is None else syn_retransmits
        lines.append(_line("", "no room", "~" * no_room, f"{no_room}, SYN retransmits: {count}"))
    if requests is None:
        return _fit([*lines, _line("", "answered", "", answered)], width)
    sent = min(connections, requests - answered)
    elsewhere = max(0, sent - located)
    idle = max(0, connections - max(sent, located))
    lines += [
        _line("", "elsewhere", "." * elsewhere, f"{elsewhere}, {where}"),
        _line("", "idle", "." * idle, f"{idle}, with nothing to send"),
        _line("", "answered", "", f"{answered} of {requests}"),
    ]
    return _fit(lines, width)


def _fit(lines: Sequence[str], width: int) -> list[str]:
    """The lines; on a terminal too narrow for the marks, wrapped and without them."""
    if width >= MAX_WIDTH:
        return [line[:MAX_WIDTH] for line in lines]
    unmarked = [line[:MARKS_START] + line[MARKS_START + MARKS_WIDTH + 1 :] for line in lines]
    return [part for line in [*unmarked, MARKS_HIDDEN] for part in textwrap.wrap(line, width)]


def fitting_width() -> int:
    """The width of standard output, but at most MAX_WIDTH and at least MIN_WIDTH."""
    return max(MIN_WIDTH, min(MAX_WIDTH, output_columns() or MAX_WIDTH))


def _line(when: str, name: str, marks: str, count: object) -> str:
    return f"{when:>8}  {name:<{NAME_WIDTH}} {marks[:MARKS_WIDTH]:<{MARKS_WIDTH}} {count}".rstrip()


def _worker_boxes(busy: Sequence[int]) -> str:
    """A box per worker, or the counts alone if the boxes do not fit."""
    boxes = " ".join(f"[{'#' * count or ' '}]" for count in busy)
    return boxes if len(boxes) <= MARKS_WIDTH else " ".join(f"[{count}]" for count in busy)


def chart_lines(rows: Mapping[str, Sequence[int]], column_s: float) -> list[str]:
    """A digit per column, "." for none, above a scale of seconds."""
    width = max(map(len, rows.values()), default=0)
    lines = [
        f"  {name:<{CHART_NAME_WIDTH}} {''.join(_digit(count) for count in counts)}"
        for name, counts in rows.items()
    ]
    scale = [" "] * (width + 4)
    for column in range(0, width, 10):
        label = f"{column * column_s:g}"
        scale[column : column + len(label)] = label
    return [*lines, f"  {'second':<{CHART_NAME_WIDTH}} {''.join(scale)}".rstrip()]


def _digit(count: int) -> str:
    return "." if not count else str(count) if count < 10 else TEN_OR_MORE


NO_GUESS_KEYS = ("\n", "\r", " ", "")  # "": the end of input
MAX_TITLE_CHARS = 34  # in the table
REDRAW_INTERVAL_S = 0.1
SYN_SENT = "SYN_SENT"  # state of a client's socket whose SYN has no response


def print_paragraph(paragraph: str = "", indent: str = "") -> None:
    """Print a paragraph, wrapped to the terminal or MAX_WIDTH."""
    width = fitting_width() - 2
    lines = textwrap.wrap(paragraph, width, initial_indent=indent, subsequent_indent=indent)
    print("\n".join(lines), flush=True)


def read_guess(step: LessonStep) -> int | None:
    """The index of the choice whose letter is typed, None for Enter. Ignores other keys."""
    key = one_key(f"Your guess ({', '.join(step.letters)}; Enter for none): ")
    while key not in step.letters and key not in NO_GUESS_KEYS:
        key = one_key("")
    index = step.letters.find(key) if key else -1
    print(key if index >= 0 else "none", end="\n\n", flush=True)
    return index if index >= 0 else None


# --- while a step runs ----------------------------------------------------------------------------


class Picture:
    """Shows slots and queues of a step. On a terminal it is redrawn in place; otherwise it is
    printed once, at the end of the step, with the state in the middle of the load."""

    def __init__(self, plan: Plan, trial: Trial, step: LessonStep) -> None:
        self._cell, self._load = trial.cell, load_for(plan, trial.cell, step.load.delay_s)
        self._step = step
        self._live: LiveCounts | None = None
        self._observer: Observer | None = None
        self._began_s = self._drawn_s = 0.0
        self._retransmits_before: int | None = None  # SYNs, before this load
        self._middle: list[str] = []
        self._width = fitting_width()
        console = Console(color_system=None, highlight=False, width=self._width)
        self._screen: Screen | None = None
        if console.is_terminal:
            self._screen = Screen(console=console, auto_refresh=False, transient=False)
            self._screen.__enter__()
            self._show([f"{'':10}starting {step.server.worker_class} ..."])

    def close(self) -> None:
        if self._screen is not None:
            if self._live is not None and self._observer is not None:
                self._draw(self._live, self._observer)  # the state after the last response
            self._screen.stop()
        elif self._middle:
            print("\n".join(self._middle), flush=True)

    def update(self, server: Running, observer: Observer) -> None:
        """Called repeatedly while the load runs."""
        now_s = time.monotonic()
        if self._live is None:
            self._live, self._began_s = LiveCounts(server.launch.trial), now_s
            self._observer = observer
        if now_s - self._drawn_s >= REDRAW_INTERVAL_S:
            self._draw(self._live, observer)

    def _draw(self, live: LiveCounts, observer: Observer) -> None:
        self._drawn_s = now_s = time.monotonic()
        busy, answered = live.poll()
        load, step = self._load, self._step
        no_room, syn_retransmits = self._dropped(observer) if load.drops else (None, None)
        lines = draw(
            now_s - self._began_s,
            busy=tuple(busy.values()),
            slots=step.at_once,
            queue=observer.latest_queue,
            connections=self._cell.concurrency,
            answered=answered,
            requests=None if load.rate_rps else load.requests,
            accepts_first=step.server.row.accepts_first,
            no_room=no_room,
            syn_retransmits=syn_retransmits,
            width=self._width,
        )
        expected = load.duration_s * load.rate_rps if load.rate_rps else load.requests
        if answered <= expected / 2:
            self._middle = lines
        self._show(lines)

    def _dropped(self, observer: Observer) -> tuple[int, int | None]:
        """The connections whose SYN was not answered or that only their client considers
        established; and the SYNs retransmitted during this load, None if unknown."""
        connections, counters = (observer.latest.get(name) for name in ("connections", "counters"))
        no_room = 0
        if isinstance(connections, ConnectionSample):
            no_room = connections.client.get(SYN_SENT, 0) + half_open(connections)
        counts = counters.counts if isinstance(counters, CountersSample) else {}
        retransmits = counts.get("syn_retransmits")
        if retransmits is None:
            return no_room, None
        if self._retransmits_before is None:
            self._retransmits_before = retransmits
        return no_room, retransmits - self._retransmits_before

    def _show(self, lines: list[str]) -> None:
        if self._screen is not None:
            self._screen.update(Text("\n".join(lines)), refresh=True)


# --- requests over time ---------------------------------------------------------------------------

COLUMN_WIDTHS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
IN_WORKER, NO_ROOM = "inside a worker", "no room"


class RequestsOverTime(NamedTuple):
    """The number of requests at each place, from the data of client, workers and kernel, in the
    middle of each column of `column_s` seconds. NO_ROOM: in flight, but at no other place. With a
    full accept queue, the kernel has dropped their SYN, or the last packet of their handshake; the
    client then considers the connection established."""

    column_s: float
    rows: dict[str, tuple[int, ...]]


def requests_over_time(facts: Facts, columns: int) -> RequestsOverTime | None:
    """The requests in at most `columns` columns; None if the client did not time each request or
    the queue was not sampled."""
    origin_ns, queue = facts.measurement.origin_ns, facts.observations.queue
    # Unanswered requests last to the end of the load
    in_flight = [(sent, answered or facts.ended_ns) for _, sent, answered in facts.timed_requests()]
    if origin_ns is None or not in_flight or not queue:
        return None
    until_s = (max(end_ns for _, end_ns in in_flight) - origin_ns) / NS
    fitting_s = (width_s for width_s in COLUMN_WIDTHS_S if until_s / width_s <= columns)
    column_s = next(fitting_s, until_s / columns)
    indices = range(ceil(until_s / column_s))
    moments = [origin_ns + (index + 0.5) * column_s * NS for index in indices]
    accepted = [(span.accept_ns or span.start_ns, span.start_ns) for span in facts.spans]
    rows = {
        "in the app": Intervals.of(facts.spans, facts.ended_ns).open_at(moments),
        IN_WORKER: Intervals(accepted).open_at(moments),
        "accept queue": _lengths(queue, moments),
    }
    totals = zip(Intervals(in_flight).open_at(moments), *rows.values(), strict=True)
    rows[NO_ROOM] = tuple(max(0, requests - sum(counts)) for requests, *counts in totals)
    return RequestsOverTime(column_s, rows)


def _lengths(queue: Sequence[QueueSample], moments: Iterable[float]) -> tuple[int, ...]:
    """The last sampled length at each moment."""
    sampled_ns = [sample.at_ns for sample in queue]
    return tuple(queue[max(0, bisect_right(sampled_ns, at) - 1)].length for at in moments)


def requests_chart(facts: Facts) -> list[str]:
    """The lines of a chart of the requests at each place over the whole load; [] if unknown."""
    width = fitting_width()
    requests = requests_over_time(facts, CHART_COLUMNS + width - MAX_WIDTH)
    if requests is None:
        return []
    rows = requests.rows
    legend = f"dot: none; {NO_ROOM}: the kernel dropped their packets"
    if not any(rows[IN_WORKER]):
        del rows[IN_WORKER]
    else:
        legend += f"; {IN_WORKER}: accepted, but not yet in the app"
        if not facts.data.worker_class.accepts_first:
            legend += ", because the request itself was dropped and must be sent again"
    lines = textwrap.wrap(f"Number of requests at each place ({legend}):", width - 2)
    return ["", *lines, *chart_lines(rows, requests.column_s)]


# --- at the end -----------------------------------------------------------------------------------


def table(results: Sequence[StepOutcome]) -> list[str]:
    """The lines of a table of all steps, with the guesses if there are any; a paragraph for each
    step if the terminal is too narrow for a table."""
    has_guesses = any(result.guess is not None for result in results)
    rows: list[tuple[str, ...]] = [("step", "guess", "right", "law", "measured")]
    for number, result in enumerate(results, 1):
        title, *cells = result.row(result.step.letters)
        rows.append((f"{number} {title}", *(cell or "-" for cell in cells)))
    if not has_guesses:
        rows = [(row[0], *row[2:]) for row in rows]
    end = ["", *([score(results), ""] if has_guesses else [])]
    if (width := fitting_width()) < MAX_WIDTH:
        lines = [
            ", ".join([title, *map(" ".join, zip(rows[0][1:], cells, strict=True))])
            for title, *cells in rows[1:]
        ]
        return [part for line in lines for part in textwrap.wrap(line, width - 2)] + end
    lines = []
    for title, *letters, law, measured in rows:
        title = title if len(title) <= MAX_TITLE_CHARS else f"{title[: MAX_TITLE_CHARS - 3]}..."
        marks = "".join(f"{letter:<6}" for letter in letters)
        lines.append(f"{title:<{MAX_TITLE_CHARS + 1}}{marks}{law:<13}{measured}".rstrip())
    lines.insert(1, "-" * (MAX_WIDTH - 2))
    return [*lines, *end]
