"""What a mistake's program prints of each of its forms, for people and for the lab."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    complaints: Mapping[str, int] = dataclasses.field(default_factory=dict)
    time_wait: int | None = None


class Counting(aiohttp.TraceConfig):
    """Counts the connections that a session opens."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self.on_connection_create_end.append(self._count)

    async def _count(self, *_: object) -> None:
        self.connections += 1


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
    forms: Mapping[str, Callable[[str, int], Outcome]],
    argv: Sequence[str] | None,
    requests: int,
) -> int:
    """The program: all forms in their order, or `--only` one; the exit code."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--only", choices=tuple(forms))
    parser.add_argument("--json", action="store_true", help="a JSON document per form")
    options = parser.parse_args(argv)
    for form, attempt in forms.items():
        if options.only in (None, form):
            outcome = attempt(options.url, options.requests)
            text = json.dumps(dataclasses.asdict(outcome)) if options.json else sentence(outcome)
            print(text, flush=True)
    return 0


def failed(name: str, error: Exception) -> int:
    """The server did not play along."""
    print(f"{name}: {error}", file=sys.stderr)
    return 1
