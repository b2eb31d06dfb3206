"""What a mistake's program does with its forms, and prints of each, for people and for the lab."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp


@dataclass
class Outcome:
    """What one form did. `returned`: how many objects of each type the caller was handed;
    `complaints`: of Python or asyncio, and how often; `time_wait`: sockets to that server that the
    kernel still holds for this client, None where it does not say."""

    mistake: str
    form: str
    code: str
    requests: int
    returned: Mapping[str, int]
    answers: int
    connections: int
    seconds: float
    complaints: Mapping[str, int] = field(default_factory=dict)
    time_wait: int | None = None


class Counting(aiohttp.TraceConfig):
    """Counts the connections that a session opens."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self.on_connection_create_end.append(self._count)

    async def _count(self, *_: object) -> None:
        self.connections += 1


async def fetch(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        await answer.read()
        return answer.status


def kinds(returned: Iterable[Any]) -> tuple[dict[str, int], int]:
    """How many objects of each type, and how many answers among them."""
    return dict(Counter(type(one).__name__ for one in returned)), sum(
        one == 200 for one in returned
    )


def sentence(outcome: Outcome) -> str:
    returned = " and ".join(f"{count} x {name}" for name, count in outcome.returned.items())
    lines = [
        f"{outcome.form}: {outcome.code}",
        f"  {outcome.requests} requests wanted, {returned} returned: {outcome.answers} answers,"
        f" {outcome.connections} connections opened, {outcome.seconds:.2f} s",
    ]
    if outcome.time_wait is not None:
        lines.append(f"  {outcome.time_wait} of its sockets are left in TIME_WAIT")
    lines += [f"  reported {count} times: {text}" for text, count in outcome.complaints.items()]
    return "\n".join(lines)


def run(
    name: str,
    forms: Iterable[str],
    attempt: Callable[[str, str, int], Outcome],
    requests: int,
    argv: Sequence[str] | None = None,
) -> int:
    """The program: all forms in their order, or `--only` one; the exit code, 1 where the server did
    not play along."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--only", choices=tuple(forms))
    parser.add_argument("--json", action="store_true", help="a JSON document per form")
    options = parser.parse_args(argv)
    for form in forms if options.only is None else (options.only,):
        try:
            outcome = attempt(form, options.url, options.requests)
        except (aiohttp.ClientError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        print(json.dumps(asdict(outcome)) if options.json else sentence(outcome), flush=True)
    return 0
