"""What a page or a text begins with, for a line of a report."""

import html
import re
from itertools import islice

LINES, LETTERS = 3, 300
MARKUP = re.compile(r"(?is)<(script|style|head)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")


def first_lines(body: bytes) -> str:
    """What a person would read first, on one line; "" for nothing."""
    words = html.unescape(MARKUP.sub("\n", body[:20_000].decode(errors="replace")))
    lines = filter(None, (" ".join(line.split()) for line in words.splitlines()))
    return " / ".join(islice(lines, LINES))[:LETTERS]
