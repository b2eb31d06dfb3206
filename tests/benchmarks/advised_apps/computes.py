"""Computes for 20 ms."""

from collections.abc import Iterable
from typing import Any

from common import Start, answer, compute


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    compute(0.02)
    return answer(start_response)
