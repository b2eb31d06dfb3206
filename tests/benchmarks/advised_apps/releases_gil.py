"""Computes for some 15 ms in a library that releases the GIL."""

import hashlib
from collections.abc import Iterable
from typing import Any

from common import Start, answer


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 30_000)
    return answer(start_response)
