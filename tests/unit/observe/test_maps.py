"""Maps of any kind: garbage is rejected or read as records, without crashing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.observe.map_readers import parse_beats, parse_stack_samples, read_beats
from workerlab.observe.spans import parse_map, read_spans
from workerlab.server.inside.maps import BEATS, HEADER, HEADER_BYTES, SPANS, STACKS

PARSERS = [(SPANS, parse_map), (BEATS, parse_beats), (STACKS, parse_stack_samples)]


@pytest.mark.parametrize(("form", "parse"), PARSERS, ids=["spans", "beats", "stacks"])
@given(data=st.binary(max_size=600), has_magic=st.booleans(), has_header=st.booleans())
def test_garbage_is_rejected_or_read_as_records(
    form: Any, parse: Callable[[bytes], Any], data: bytes, has_magic: bool, has_header: bool
) -> None:
    """Anything after a whole header is read as records."""
    head = form.magic if has_magic else b""
    if has_header:
        head = HEADER.pack(form.magic, 7, form.record.size, 5, 0).ljust(HEADER_BYTES, b"\0")
    try:
        pid, *_, records = parse(head + data)
    except ValueError:
        assert len(head) < HEADER_BYTES
        return
    assert pid == 7
    assert len(records) <= len(data) // form.record.size


@pytest.mark.parametrize(("kind", "read"), [("spans", read_spans), ("beats", read_beats)])
def test_an_unreadable_map_is_an_error(
    tmp_path: Path, kind: str, read: Callable[[Path], Any]
) -> None:
    (tmp_path / f"{kind}-1-0.map").write_bytes(b"no map" * 100)
    with pytest.raises(ValueError, match="map of this version"):
        read(tmp_path)
