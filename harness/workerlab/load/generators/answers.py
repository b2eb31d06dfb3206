"""Recognises usual responses, at a tenth of what reading them costs.

Every byte is looked at all the same: a response equals one that was verified before (`known`), or
its head equals a head that was verified, or each line of its head is understood as http1
understands it; then its body is as long as its head says, and the reference where one is asked for.
Only what is a success in the end is recognised. Where the head came whole and the body did not (an
application server sends one after the other), the rest is counted as it comes. All else (a head in
pieces, bytes after the end, a body in chunks or until the end of the stream, an interim response, a
failure) is read in full, and is None here.

Where every head differs from all others (a Date with microseconds, a request id, an ETag), most of
its lines were seen before, and only those that say where a body ends are judged together. Tried and
left: one regular expression for a whole head, which takes longer than its lines one by one.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from workerlab.load.generators.http1 import Garbage, Head, Response, framing

END = b"\r\n\r\n"  # of a head
LONGEST = 4_096  # bytes of a head that is recognised
KEPT = 256  # heads, and lines, that were verified; when they are more, all are forgotten
NOTHING = b"\0"  # which no response is

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that was verified whole, and is a success."""

    status: int
    body_bytes: int
    keeps: bool  # its connection can carry another request


class Body:
    """Of a response whose head was recognised; to its reader a Response."""

    __slots__ = ("_answer", "_left", "_summed", "body_bytes", "checksum", "status")
    digest = None
    begin = b""

    def __init__(self, answer: Answer, *, summed: bool) -> None:
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
    """Of one kind of request. `judge`: the cause of the failure that a status is. `reference`:
    (bytes, checksum) of the body that each must have where they are compared, once it is known.
    `kept`: as in Response."""

    def __init__(
        self, method: str, judge: Callable[[int], str | None], *, compared: bool, kept: int = 0
    ) -> None:
        self._kept = kept
        self.known, self.known_answer = NOTHING, Answer(0, 0, keeps=False)
        self.reference: tuple[int, int] | None = None
        self._method, self._judge, self._compared = method, judge, compared
        self._heads: dict[bytes, Answer] = {}
        self._tells: dict[bytes, bool] = {}  # of a header line: whether the answer depends on it
        self._judged: dict[tuple[bytes, ...], Answer | None] = {}  # by the lines that tell

    def remember(self, data: bytes, response: Response | Body) -> None:
        """One that was right, whole and by itself."""
        self.known = data
        self.known_answer = Answer(response.status or 0, response.body_bytes, response.keeps)

    def recognised(self, data: bytes) -> Answer | None:
        """What these bytes are; None: they must be read."""
        if data == self.known:
            return self.known_answer
        stop, answer = self._head(data)
        if answer is None or len(data) != stop + answer.body_bytes:
            return None
        if self._compared and (answer.body_bytes, zlib.crc32(data[stop:])) != self.reference:
            return None
        self.known, self.known_answer = data, answer  # where all are the same: the next one, too
        return answer

    def begun(self, data: bytes) -> Response | Body:
        """The reader of a response, with its first bytes. Raises Garbage."""
        stop, answer = self._head(data)
        first = self._compared and self.reference is None
        reader: Response | Body
        if first or answer is None or len(data) >= stop + answer.body_bytes:
            reader = Response(self._method, summed=self._compared, hashed=first, kept=self._kept)
            reader.feed(data)
        else:
            reader = Body(answer, summed=self._compared)
            reader.feed(data[stop:])
        return reader

    def _head(self, data: bytes) -> tuple[int, Answer | None]:
        """Where the head ends that these bytes begin with, and what a response is that has it."""
        stop = data.find(END, 0, LONGEST) + len(END)
        head = data[:stop]
        return stop, self._heads.get(head) or self._verified(head)

    def _verified(self, text: bytes) -> Answer | None:
        """What a response is that has this head, and the body that it announces."""
        first, *fields = text.removesuffix(END).split(b"\r\n")
        telling, tells = [first], self._tells
        try:
            for line in fields:
                known = tells.get(line)
                if known is None:
                    known = self._keep(tells, line, framing(line) is not None)
                if known:
                    telling.append(line)
            key = tuple(telling)
            if key not in self._judged:
                self._keep(self._judged, key, self._answer(key))
        except Garbage:
            return None
        answer = self._judged[key]
        return None if answer is None else self._keep(self._heads, text, answer)

    def _answer(self, lines: Sequence[bytes]) -> Answer | None:
        """What a response is that has these lines in its head. Raises Garbage."""
        head = Head(lines[0])
        for line in lines[1:]:
            head.field(line)
        bodiless = self._method == "HEAD" or head.status in (204, 304)
        body_bytes = 0 if bodiless else head.length
        unusual = head.status < 200 or not (bodiless or not head.coding)
        if unusual or body_bytes is None or self._judge(head.status) is not None:
            return None
        return Answer(head.status, body_bytes, head.lasting)

    @staticmethod
    def _keep(known: dict[K, T], key: K, value: T) -> T:
        """Remember what was verified, in bounded memory."""
        if len(known) == KEPT:
            known.clear()
        known[key] = value
        return value
