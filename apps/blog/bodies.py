"""A request's body, read before anything is done about it, and no more of it kept than may be.

Left unread, it makes the kernel reset the connection when the server closes it, and the client
loses the answer that says why. So what is too much is read and thrown away; who sends DISCARDED
times as much as may be is not listened to any longer, and may lose the answer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

CHUNK_BYTES = 65_536
DISCARDED = 10  # times what is kept


class Body:
    """Takes parts as they come. Keeps one byte more than `most_bytes`, so that whoever looks at it
    sees that it is too large."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.size = 0  # of all that came
        self._parts: list[bytes] = []
        self._room = most_bytes + 1

    def take(self, part: bytes) -> bool:
        """Whether to go on."""
        self.size += len(part)
        if self._room:
            self._parts.append(part[: self._room])
            self._room -= len(self._parts[-1])
        return self.size <= DISCARDED * self.most_bytes

    def into(self, environ: Mapping[str, Any]) -> dict[str, Any]:
        """A WSGI environ with this body, whole, however it came: a request that says "chunked" is
        taken for one without a body otherwise."""
        data = b"".join(self._parts)
        made = {**environ, "wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}
        made.pop("HTTP_TRANSFER_ENCODING", None)
        return made
