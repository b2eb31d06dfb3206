"""The beginning of a page or text, for a line of a report."""

import html
import re
from itertools import islice

LINES, LETTERS = 3, 300
MARKUP = re.compile(r"(?is)<(script|style|head)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")


def first_lines(body: bytes) -> str:
    """The first visible lines, joined into one; "" if there is no text."""
    words = html.unescape(MARKUP.sub("\n", body[:20_000].decode(errors="replace")))
    lines = filter(None, (" ".join(line.split()) for line in words.splitlines()))
    return " / ".join(islice(lines, LINES))[:LETTERS]
