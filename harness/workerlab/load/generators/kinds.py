"""The kinds of requests that a process of `fast` sends, and which comes next."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from workerlab.load.generators.answers import Answers
from workerlab.load.generators.document import BODY_BYTES, RouteTally, Tally
from workerlab.load.generators.request import Destination
from workerlab.load.generators.words import Words
from workerlab.numbers.mix import sequence


@dataclass(slots=True, eq=False)
class RouteKind:
    """`place`: index in the mix. `to`: its bytes for each destination. `tally`: of its route, which
    other kinds may share; None if all requests are the same."""

    place: int
    words: Words
    to: tuple[Destination, ...]
    answers: Answers
    tally: RouteTally | None = None


def only(words: Words, to: tuple[Destination, ...]) -> RouteKind:
    """The kind of a load whose requests are all the same."""
    return RouteKind(0, words, to, Answers(words.method, words.judge, compared=words.same_body))


def of_mix(words: Words, to: tuple[tuple[Destination, ...], ...], tally: Tally) -> list[RouteKind]:
    """`to`: destinations of each kind. `tally` receives an account per route."""
    return [
        RouteKind(
            place=place,
            words=kind.words,
            to=to[place],
            answers=Answers(kind.words.method, kind.words.judge, compared=False, kept=BODY_BYTES),
            tally=tally.routes.setdefault(kind.label, RouteTally()),
        )
        for place, kind in enumerate(words.mix)
    ]


def turns(words: Words, first: int, step: int) -> Iterator[int]:
    """Indices into the mix for requests `first`, `first + step`, ..., counted from 1. Endless."""
    drawn = sequence([kind.weight for kind in words.mix], words.seed)
    return islice(drawn, first - 1, None, step)
