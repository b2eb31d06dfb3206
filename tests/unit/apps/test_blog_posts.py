"""Validation of posts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.blog.posts import MAX_BODY, MAX_TITLE, BadInput, Draft


@pytest.mark.parametrize("value", [None, 1, ["t"], {}, "", " ", "\n\t\u3000", "\x00", "a\x00b"])
def test_a_post_needs_a_title_and_a_body(value: object) -> None:
    with pytest.raises(BadInput, match=r"title .*\.$|needs a title\.$"):
        Draft.of(value, "body")
    with pytest.raises(BadInput, match=r"body .*\.$|needs a body\.$"):
        Draft.of("title", value)


@pytest.mark.parametrize("surrogate", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_refused(surrogate: str) -> None:
    for title, body in ((surrogate, "body"), ("title", surrogate)):
        with pytest.raises(BadInput, match="half a character"):
            Draft.of(title, body)


def test_a_post_has_a_maximum_length() -> None:
    longest = Draft.of("t" * MAX_TITLE, "b" * MAX_BODY)
    assert (len(longest.title), len(longest.body)) == (MAX_TITLE, MAX_BODY)
    with pytest.raises(BadInput, match=f"the maximum is {MAX_TITLE}"):
        Draft.of("t" * (MAX_TITLE + 1), "b")
    with pytest.raises(BadInput, match=f"the maximum is {MAX_BODY}"):
        Draft.of("t", "b" * (MAX_BODY + 1))


def test_a_title_is_one_line() -> None:
    assert Draft.of("  On\r\nqueues\t and ", "b").title == "On queues and"


@given(st.text(min_size=1, max_size=50), st.text(min_size=1, max_size=200))
def test_a_valid_post_is_kept_as_typed_and_can_be_stored(title: str, body: str) -> None:
    try:
        draft = Draft.of(title, body)
    except BadInput:
        assert not title.strip() or not body.strip() or "\x00" in title + body
        return
    assert draft.body == body
    assert draft.title.split() == title.split()
    assert "\x00" not in draft.html
    draft.html.encode()
