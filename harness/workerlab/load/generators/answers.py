"""Recognises typical responses at a tenth of the cost of parsing them.

Every byte is still checked: a response equals the last verified one, or its head equals a verified
head, or http1 parses each line of its head; the body has the announced length, and equals the
reference if bodies are compared. Only successes are recognised. If the head arrives without the
whole body (application servers send them separately), `AnswerBody` reads the rest. Everything else
(a head in pieces, bytes after the end, a chunked body or one that ends with the stream, an interim
response, a failure) is left to the full parser.

If every head is different (a Date with microseconds, a request id, an ETag), most of its lines are
cached, and only the lines that frame the body are parsed together. Rejected: one regular expression
for a whole head, which takes longer than its lines one by one.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from workerlab.load.generators.http1 import Head, MalformedResponse, Response, framing_field

HEAD_END = b"\r\n\r\n"
MAX_RECOGNISED_HEAD_BYTES = 4_096
MAX_CACHED = 256  # entries of a cache; a full one is cleared
NO_RESPONSE = b"\0"  # equals no response

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A complete and successful response."""

    status: int
    body_bytes: int
    keeps_connection: bool  # whether the connection can carry another request


class AnswerBody:
    """Reads the body of a response whose head was recognised. It has the interface of Response."""

    __slots__ = ("_answer", "_checksummed", "_left", "body_bytes", "checksum", "status")
    digest = None
    body_start = b""

    def __init__(self, answer: ParsedAnswer, *, checksummed: bool) -> None:
        self.status, self._answer, self._left = answer.status, answer, answer.body_bytes
        self._checksummed = checksummed
        self.body_bytes = self.checksum = 0  # as in Response

    def feed(self, data: bytes) -> bool:
        size = min(len(data), self._left)
        if self._checksummed:
            self.checksum = zlib.crc32(data[:size], self.checksum)
        self.body_bytes += size
        self._left -= len(data)
        return self.complete

    @property
    def complete(self) -> bool:
        return self._left <= 0

    @property
    def keeps_connection(self) -> bool:
        return self._left == 0 and self._answer.keeps_connection

    def end(self) -> str | None:
        return "truncated"


class Recogniser:
    """Recognises successful responses to one kind of request. `failure_cause(status)` is None for a
    success. If bodies are compared, each must have the `reference`, (bytes, checksum), which is
    None until it is known. `kept_bytes`: as in Response."""

    def __init__(
        self,
        method: str,
        failure_cause: Callable[[int], str | None],
        *,
        compare_bodies: bool,
        kept_bytes: int = 0,
    ) -> None:
        self._kept_bytes = kept_bytes
        self.last_data, self.last_answer = NO_RESPONSE, ParsedAnswer(0, 0, keeps_connection=False)
        self.reference: tuple[int, int] | None = None
        self._method, self._failure_cause = method, failure_cause
        self._compare_bodies = compare_bodies
        self._heads: dict[bytes, ParsedAnswer] = {}
        self._frames_body: dict[bytes, bool] = {}  # by header line
        # By status line and framing lines
        self._by_framing: dict[tuple[bytes, ...], ParsedAnswer | None] = {}

    def remember(self, data: bytes, response: Response | AnswerBody) -> None:
        """Remember the bytes of a successful response."""
        self.last_data = data
        self.last_answer = ParsedAnswer(
            status=response.status or 0,
            body_bytes=response.body_bytes,
            keeps_connection=response.keeps_connection,
        )

    def recognise(self, data: bytes) -> ParsedAnswer | None:
        """The response in these bytes, or None if they must be parsed."""
        if data == self.last_data:
            return self.last_answer
        stop, answer = self._split_head(data)
        if answer is None or len(data) != stop + answer.body_bytes:
            return None
        if self._compare_bodies and (answer.body_bytes, zlib.crc32(data[stop:])) != self.reference:
            return None
        self.last_data, self.last_answer = data, answer  # the next response may be equal
        return answer

    def start_reader(self, data: bytes) -> Response | AnswerBody:
        """A reader that has parsed these first bytes of a response. Raises MalformedResponse."""
        stop, answer = self._split_head(data)
        is_first_body = self._compare_bodies and self.reference is None
        reader: Response | AnswerBody
        if is_first_body or answer is None or len(data) >= stop + answer.body_bytes:
            reader = Response(
                self._method,
                checksummed=self._compare_bodies,
                hashed=is_first_body,
                kept_bytes=self._kept_bytes,
            )
            reader.feed(data)
        else:
            reader = AnswerBody(answer, checksummed=self._compare_bodies)
            reader.feed(data[stop:])
        return reader

    def _split_head(self, data: bytes) -> tuple[int, ParsedAnswer | None]:
        """(length of the head, the response it announces, or None if that must be parsed)."""
        stop = data.find(HEAD_END, 0, MAX_RECOGNISED_HEAD_BYTES) + len(HEAD_END)
        head = data[:stop]
        return stop, self._heads.get(head) or self._verify_head(head)

    def _verify_head(self, text: bytes) -> ParsedAnswer | None:
        """The response that this head announces, or None if it must be parsed."""
        status_line, *fields = text.removesuffix(HEAD_END).split(b"\r\n")
        framing_lines, cache = [status_line], self._frames_body
        try:
            for line in fields:
                frames = cache.get(line)
                if frames is None:
                    frames = self._store(cache, line, framing_field(line) is not None)
                if frames:
                    framing_lines.append(line)
            key = tuple(framing_lines)
            if key not in self._by_framing:
                self._store(self._by_framing, key, self._parse_framing(key))
        except MalformedResponse:
            return None
        answer = self._by_framing[key]
        return None if answer is None else self._store(self._heads, text, answer)

    def _parse_framing(self, lines: Sequence[bytes]) -> ParsedAnswer | None:
        """The response that these lines announce, or None if it must be parsed. Raises
        MalformedResponse."""
        head = Head(lines[0])
        for line in lines[1:]:
            head.add_field(line)
        bodiless = self._method == "HEAD" or head.status in (204, 304)
        body_bytes = 0 if bodiless else head.length
        unusual = head.status < 200 or not (bodiless or not head.coding)
        if unusual or body_bytes is None or self._failure_cause(head.status) is not None:
            return None
        return ParsedAnswer(head.status, body_bytes, keeps_connection=head.persistent)

    @staticmethod
    def _store(cache: dict[K, T], key: K, value: T) -> T:
        """Add to a cache of bounded size."""
        if len(cache) == MAX_CACHED:
            cache.clear()
        cache[key] = value
        return value
