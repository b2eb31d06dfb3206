"""What the lesson writes to a terminal of 80 columns or fewer, and the guess that it reads."""

import textwrap
from collections.abc import Sequence

from workerlab.analysis.facts import Facts
from workerlab.experiments.demo.load_course import course
from workerlab.experiments.lesson.steps import Step
from workerlab.experiments.lesson.words import Told, score
from workerlab.terminal.console import one_key
from workerlab.terminal.picture import COLUMNS, WIDTH, fitting_width, over_time

NO_GUESS = ("\n", "\r", " ", "")  # the last: the end of input
LONGEST = 34  # characters of a title in the table


def say(paragraph: str = "", indent: str = "") -> None:
    """In the columns there are, 80 at most."""
    width = fitting_width() - 2
    lines = textwrap.wrap(paragraph, width, initial_indent=indent, subsequent_indent=indent)
    print("\n".join(lines), flush=True)


def guess(step: Step) -> int | None:
    """The place of the choice whose letter is typed, None for Enter. Other keys are slips."""
    key = one_key(f"Your guess ({', '.join(step.letters)}; Enter for none): ")
    while key not in step.letters and key not in NO_GUESS:
        key = one_key("")
    place = step.letters.find(key) if key else -1
    print(key if place >= 0 else "none", end="\n\n", flush=True)
    return place if place >= 0 else None


def course_of(facts: Facts) -> list[str]:
    """How many requests were where, from the begin of the load to its end."""
    width = fitting_width()
    found = course(facts, COLUMNS + width - WIDTH)
    if found is None:
        return []
    rows = {"in the app": found.in_app, "inside a worker": found.in_worker}
    rows |= {"accept queue": found.queued, "no room": found.no_room}
    legend = "a dot: none; no room: the kernel dropped what they sent"
    if not any(found.in_worker):
        del rows["inside a worker"]
    else:
        legend += "; inside a worker: accepted, and not yet in the app"
        if not facts.data.worker_class.accepts_first:
            legend += ", as the request itself was dropped and has to come again"
    lines = textwrap.wrap(f"How many requests were where ({legend}):", width - 2)
    return ["", *lines, *over_time(rows, found.column_s)]


def table(told: Sequence[Told]) -> list[str]:
    """All steps, with what was guessed where somebody guessed; a paragraph each where the terminal
    is too narrow for a table."""
    guessed = any(one.guess is not None for one in told)
    heads = ("step", "guess", "right", "law", "measured")
    rows: list[tuple[str, ...]] = [
        heads,
        *((f"{n} {one.row[0]}", *one.row[1:]) for n, one in enumerate(told, 1)),
    ]
    if not guessed:
        rows = [(row[0], *row[2:]) for row in rows]
    end = ["", *([score(told), ""] if guessed else [])]
    if (width := fitting_width()) < WIDTH:
        lines = [
            ", ".join([title, *map(" ".join, zip(rows[0][1:], others, strict=True))])
            for title, *others in rows[1:]
        ]
        return [part for line in lines for part in textwrap.wrap(line, width - 2)] + end
    lines = []
    for title, *others in rows:
        title = title if len(title) <= LONGEST else f"{title[: LONGEST - 3]}..."
        *letters, law_said, found = others
        marks = "".join(f"{letter:<6}" for letter in letters)
        lines.append(f"{title:<{LONGEST + 1}}{marks}{law_said:<13}{found}".rstrip())
    lines.insert(1, "-" * (WIDTH - 2))
    return [*lines, *end]
