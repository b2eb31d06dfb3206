"""Posts render to harmless HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.blog.posts import MAX_BODY, render

ALLOWED_ELEMENTS = {
    "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "li",
    "ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
ALLOWED_ATTRIBUTES = {"href", "src", "alt", "title", "rel", "start"}
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<style>*{display:none}</style>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<form action=//evil.example><input name=password></form>",
    "<!-- --!><script>alert(1)</script>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](java\nscript:alert(1))",
    "[a](<java\tscript:alert(1)>)",
    "[a](vbscript:x)",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](file:///etc/passwd)",
    "![a](javascript:alert(1))",
    "![a](data:image/svg+xml;base64,PHN2Zy8+)",
    "![a](data:image/png;base64,iVBORw0KGgo=)",
    '![a](/x" onerror="alert(1))',
    '[a](/x "t\\" onclick=alert(1)")',
    "<javascript:alert(1)>",
    "[a][b]\n\n[b]: javascript:alert(1)",
    '```"><script>alert(1)</script>\nx\n```',
    "|<script>|\n|-|\n|<img src=x onerror=alert(1)>|",
    "`</code><script>alert(1)</script>`",
    "a\x00<script\x00>alert(1)</script>",
    "<a href='java&Tab;script:alert(1)'>a</a>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
)


class ParsedHtml(HTMLParser):
    """The elements, attributes and addresses of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src"):
                self.addresses.append((value or "").strip().lower())


def assert_harmless(text: str) -> None:
    parsed = ParsedHtml(render(text))
    assert parsed.elements <= ALLOWED_ELEMENTS
    assert parsed.attributes <= ALLOWED_ATTRIBUTES
    for address in parsed.addresses:
        scheme = re.match(r"([a-z][a-z0-9+.-]*):", re.sub(r"[\x00-\x20]", "", address))
        assert scheme is None or scheme[1] in {"http", "https", "mailto", "ftp", "tel"}, address


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_harmless(text: str) -> None:
    assert_harmless(text)
    assert_harmless(f"> - *{text}*\n\n{text}")


@given(st.lists(st.sampled_from((*HOSTILE, "\n", "\n\n", "> ", "- ", "*", "`", "|", "a"))))
def test_mixtures_of_hostile_text_are_harmless(parts: list[str]) -> None:
    assert_harmless("".join(parts))


@given(st.text(alphabet=" \n\t<>[]()!*_`~|-+#&;:\"'/\\ajs1=", max_size=60))
def test_any_text_is_harmless(text: str) -> None:
    assert_harmless(text)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**a** *b* ~~c~~ `d`", "<p><strong>a</strong> <em>b</em> <s>c</s> <code>d</code></p>\n"),
        ("![alt](/images/x.png)", '<p><img src="/images/x.png" alt="alt"></p>\n'),
        ("1 < 2 & 3", "<p>1 &lt; 2 &amp; 3</p>\n"),
        ("<b>no</b>", "<p>&lt;b&gt;no&lt;/b&gt;</p>\n"),
        ("    a\n", "<pre><code>a\n</code></pre>\n"),
    ],
)
def test_markdown_is_rendered(text: str, html: str) -> None:
    assert render(text) == html


def test_a_table_is_rendered() -> None:
    assert {"table", "th", "td"} <= ParsedHtml(render("|a|b|\n|-|-|\n|1|2|")).elements


@pytest.mark.parametrize("text", ["> ", "- ", "[", "![", "*a **b ", "(", "`", "<", "|a"])
def test_deep_nesting_renders_to_bounded_html(text: str) -> None:
    """A special character becomes some five characters of HTML."""
    body = text * (MAX_BODY // 2 // len(text))
    assert len(render(body)) <= 10 * len(body)
