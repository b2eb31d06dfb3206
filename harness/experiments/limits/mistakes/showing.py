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
class Shown:
    """What one form did. `got`: how many objects of each type the caller was handed; `said`: what
    Python or asyncio complained of, and how often; `time_wait`: sockets to that server that the
    kernel still holds for this client, None where it does not say."""

    mistake: str
    form: str
    code: str
    asked: int
    got: Mapping[str, int]
    answers: int
    connections: int
    seconds: float
    said: Mapping[str, int] = dataclasses.field(default_factory=dict)
    time_wait: int | None = None


class Counting(aiohttp.TraceConfig):
    """Counts the connections that a session opens."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self.on_connection_create_end.append(self._count)

    async def _count(self, *_: object) -> None:
        self.connections += 1


def sentence(shown: Shown) -> str:
    got = " and ".join(f"{count} x {name}" for name, count in shown.got.items())
    lines = [
        f"{shown.form}: {shown.code}",
        f"  {shown.asked} requests wanted, {got} handed back: {shown.answers} answers,"
        f" {shown.connections} connections opened, {shown.seconds:.2f} s",
    ]
    if shown.time_wait is not None:
        lines.append(f"  {shown.time_wait} of its sockets are left in TIME_WAIT")
    lines += [f"  said {count} times: {text}" for text, count in shown.said.items()]
    return "\n".join(lines)


def run(
    name: str,
    forms: Mapping[str, Callable[[str, int], Shown]],
    argv: Sequence[str] | None,
    requests: int,
) -> int:
    """The program: all forms in their order, or `--only` one; the exit code."""
    words = argparse.ArgumentParser(prog=name)
    words.add_argument("url")
    words.add_argument("--requests", type=int, default=requests)
    words.add_argument("--only", choices=tuple(forms))
    words.add_argument("--json", action="store_true", help="a JSON document per form")
    options = words.parse_args(argv)
    for form, show in forms.items():
        if options.only in (None, form):
            shown = show(options.url, options.requests)
            text = json.dumps(dataclasses.asdict(shown)) if options.json else sentence(shown)
            print(text, flush=True)
    return 0


def failed(name: str, error: Exception) -> int:
    """The server did not play along."""
    print(f"{name}: {error}", file=sys.stderr)
    return 1
