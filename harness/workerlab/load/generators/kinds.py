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
class Kind:
    """`place`: in the mix. `to`: its bytes for each destination. `tally`: of its route, which other
    kinds may share; None where all requests are the same."""

    place: int
    words: Words
    to: tuple[Destination, ...]
    answers: Answers
    tally: RouteTally | None = None


def only(words: Words, to: tuple[Destination, ...]) -> Kind:
    """Where all requests are the same."""
    return Kind(0, words, to, Answers(words.method, words.judge, compared=words.same_body))


def of_mix(words: Words, to: tuple[tuple[Destination, ...], ...], tally: Tally) -> list[Kind]:
    """`to`: of each kind. Their accounts stand in `tally`."""
    return [
        Kind(
            place,
            one.words,
            to[place],
            Answers(one.words.method, one.words.judge, compared=False, kept=BODY_BYTES),
            tally.routes.setdefault(one.label, RouteTally()),
        )
        for place, one in enumerate(words.mix)
    ]


def turns(words: Words, first: int, step: int) -> Iterator[int]:
    """Places in the mix of requests `first`, `first + step`, ..., counted from 1. Without end."""
    drawn = sequence([kind.weight for kind in words.mix], words.seed)
    return islice(drawn, first - 1, None, step)
