"""Recognises the responses that came whole, in one piece, at a tenth of what reading them costs.

Every byte is looked at all the same: a response equals one that was verified before (`known`), or
its head equals a head that was verified, or each line of its head is understood as http1
understands it; then its body is as long as its head says, and the reference where one is asked for.
Only what is a success in the end is recognised. All else (in pieces, with bytes after it, until the
end of the stream, in chunks, an interim response, a failure) is read in full, and is None here.

Tried and left: one regular expression for a whole head, which takes three times as long as its
lines one by one.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from harness.load.generators.http1 import Garbage, Head, Response

END = b"\r\n\r\n"  # of a head
LONGEST = 4_096  # bytes of a head that is recognised
KEPT_HEADS = 64  # that were verified; where each response has its own, they are forgotten together
NOTHING = b"\0"  # which no response is


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that was verified whole, and is a success."""

    status: int
    body_bytes: int
    keeps: bool  # its connection can carry another request


class Answers:
    """Of one kind of request. `judge`: the cause of the failure that a status is. `reference`:
    (bytes, checksum) of the body that each must have where they are compared, once it is known."""

    def __init__(self, method: str, judge: Callable[[int], str | None], *, compared: bool) -> None:
        self.known, self.known_answer = NOTHING, Answer(0, 0, keeps=False)
        self.reference: tuple[int, int] | None = None
        self._method, self._judge, self._compared = method, judge, compared
        self._heads: dict[bytes, Answer] = {}

    def remember(self, data: bytes, response: Response) -> None:
        """One that was right, whole and by itself."""
        self.known = data
        self.known_answer = Answer(response.status or 0, response.body_bytes, response.keeps)

    def recognised(self, data: bytes) -> Answer | None:
        """What these bytes are; None: they must be read in full."""
        if data == self.known:
            return self.known_answer
        stop = data.find(END, 0, LONGEST) + len(END)
        head = data[:stop]
        answer = self._heads.get(head)
        if answer is None and (answer := self._verified(head)) is None:
            return None
        if len(data) != stop + answer.body_bytes:
            return None
        if self._compared and (answer.body_bytes, zlib.crc32(data[stop:])) != self.reference:
            return None
        return answer

    def _verified(self, text: bytes) -> Answer | None:
        """What a response is that has this head, and the body that it announces."""
        first, *fields = text.removesuffix(END).split(b"\r\n")
        try:
            head = Head(first)
            for line in fields:
                head.field(line)
        except Garbage:
            return None
        bodiless = self._method == "HEAD" or head.status in (204, 304)
        body_bytes = 0 if bodiless else head.length
        unusual = head.status < 200 or not (bodiless or not head.coding)
        if unusual or body_bytes is None or self._judge(head.status) is not None:
            return None
        if len(self._heads) == KEPT_HEADS:
            self._heads.clear()
        answer = self._heads[text] = Answer(head.status, body_bytes, head.lasting)
        return answer
