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

from workerlab.load.generators.http1 import Head, MalformedResponse, Response, framing

END = b"\r\n\r\n"  # of a head
MAX_HEAD_BYTES = 4_096  # of a head that is recognised
MAX_CACHED = 256  # verified heads, and lines; a full cache is cleared
NO_RESPONSE = b"\0"  # equals no response

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A complete, verified response that is a success."""

    status: int
    body_bytes: int
    keeps: bool  # its connection can carry another request


class AnswerBody:
    """Reads the body of a response whose head was recognised; same interface as Response."""

    __slots__ = ("_answer", "_left", "_summed", "body_bytes", "checksum", "status")
    digest = None
    begin = b""

    def __init__(self, answer: ParsedAnswer, *, summed: bool) -> None:
        self.status, self._answer, self._left = answer.status, answer, answer.body_bytes
        self._summed = summed
        self.body_bytes = self.checksum = 0  # as in Response

    def feed(self, data: bytes) -> bool:
        size = min(len(data), self._left)
        if self._summed:
            self.checksum = zlib.crc32(data[:size], self.checksum)
        self.body_bytes += size
        self._left -= len(data)
        return self.complete

    @property
    def complete(self) -> bool:
        return self._left <= 0

    @property
    def keeps(self) -> bool:
        return self._left == 0 and self._answer.keeps

    def end(self) -> str | None:
        return "truncated"


class Answers:
    """Recognises responses to one kind of request. `judge(status)`: the cause of failure, None for
    a success. `reference`: (bytes, checksum) that bodies must have if they are compared, None until
    it is known. `kept`: as in Response."""

    def __init__(
        self, method: str, judge: Callable[[int], str | None], *, compared: bool, kept: int = 0
    ) -> None:
        self._kept = kept
        self.last_data, self.last_answer = NO_RESPONSE, ParsedAnswer(0, 0, keeps=False)
        self.reference: tuple[int, int] | None = None
        self._method, self._judge, self._compared = method, judge, compared
        self._heads: dict[bytes, ParsedAnswer] = {}
        self._tells: dict[bytes, bool] = {}  # by header line: whether it frames the body
        self._judged: dict[tuple[bytes, ...], ParsedAnswer | None] = {}  # by those lines

    def remember(self, data: bytes, response: Response | AnswerBody) -> None:
        """Remember the bytes of a response that was a success."""
        self.last_data = data
        self.last_answer = ParsedAnswer(response.status or 0, response.body_bytes, response.keeps)

    def recognised(self, data: bytes) -> ParsedAnswer | None:
        """The response in these bytes; None if they must be parsed."""
        if data == self.last_data:
            return self.last_answer
        stop, answer = self._head(data)
        if answer is None or len(data) != stop + answer.body_bytes:
            return None
        if self._compared and (answer.body_bytes, zlib.crc32(data[stop:])) != self.reference:
            return None
        self.last_data, self.last_answer = data, answer  # the next one may be equal
        return answer

    def begun(self, data: bytes) -> Response | AnswerBody:
        """A reader that was fed the first bytes of a response. Raises MalformedResponse."""
        stop, answer = self._head(data)
        first = self._compared and self.reference is None
        reader: Response | AnswerBody
        if first or answer is None or len(data) >= stop + answer.body_bytes:
            reader = Response(self._method, summed=self._compared, hashed=first, kept=self._kept)
            reader.feed(data)
        else:
            reader = AnswerBody(answer, summed=self._compared)
            reader.feed(data[stop:])
        return reader

    def _head(self, data: bytes) -> tuple[int, ParsedAnswer | None]:
        """(where the head of these bytes ends, the response it announces)."""
        stop = data.find(END, 0, MAX_HEAD_BYTES) + len(END)
        head = data[:stop]
        return stop, self._heads.get(head) or self._verified(head)

    def _verified(self, text: bytes) -> ParsedAnswer | None:
        """The response that this head announces; None if it must be parsed."""
        first, *fields = text.removesuffix(END).split(b"\r\n")
        framing_lines, cache = [first], self._tells
        try:
            for line in fields:
                frames = cache.get(line)
                if frames is None:
                    frames = self._keep(cache, line, framing(line) is not None)
                if frames:
                    framing_lines.append(line)
            key = tuple(framing_lines)
            if key not in self._judged:
                self._keep(self._judged, key, self._answer(key))
        except MalformedResponse:
            return None
        answer = self._judged[key]
        return None if answer is None else self._keep(self._heads, text, answer)

    def _answer(self, lines: Sequence[bytes]) -> ParsedAnswer | None:
        """The response announced by these lines of a head. Raises MalformedResponse."""
        head = Head(lines[0])
        for line in lines[1:]:
            head.field(line)
        bodiless = self._method == "HEAD" or head.status in (204, 304)
        body_bytes = 0 if bodiless else head.length
        unusual = head.status < 200 or not (bodiless or not head.coding)
        if unusual or body_bytes is None or self._judge(head.status) is not None:
            return None
        return ParsedAnswer(head.status, body_bytes, head.lasting)

    @staticmethod
    def _keep(cache: dict[K, T], key: K, value: T) -> T:
        """Add to a cache of bounded size."""
        if len(cache) == MAX_CACHED:
            cache.clear()
        cache[key] = value
        return value
