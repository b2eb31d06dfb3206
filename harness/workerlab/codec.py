"""Reads and writes the lab's own JSON, with msgspec and the types of the model.

Unknown fields are ignored; missing ones get their defaults or raise. So fields can be added without
a new schema. External data has its own readers and checks: the load tools' output (their parsers
raise ParseError), the probe's maps, and messages from the lab's isolated programs.

All msgspec calls go through this module, because the first use of a type is not thread-safe:
msgspec builds a description of the type, and a thread that uses an incomplete description crashes
(msgspec 0.22, in an interpreter with a GIL).
"""

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_build_lock = threading.Lock()
_described_types: set[object] = set()


def encode(value: object) -> bytes:
    """The value as one line of JSON, without a newline."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # file names may contain undecodable bytes: replace only these
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def indented(value: object) -> bytes:
    """The value as indented JSON, for human readers."""
    return msgspec.json.format(encode(value), indent=1)


def decode(data: bytes | str, kind: type[T], *, strict: bool = True) -> T:
    """The inverse of `encode`. If not `strict`, 1.0 is accepted as an integer. Raises ValueError
    for invalid JSON, or for a value that is not a `kind`."""
    return msgspec.json.decode(data, type=_described(kind), strict=strict)


def plain(value: object) -> Any:
    """The value in built-in types, as in JSON; `convert` is the inverse."""
    return msgspec.to_builtins(value)


def convert(value: object, kind: type[T], build: Callable[[type, Any], Any] | None = None) -> T:
    """A `kind` made from built-in types. `build(cls, value)` makes types that msgspec does not
    support. Raises ValueError."""
    return msgspec.convert(value, _described(kind), dec_hook=build)


def schemas(kinds: Iterable[type]) -> dict[str, Any]:
    """The JSON Schemas of these Structs and all their parts, by name."""
    with _build_lock:
        return msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")[1]


def _described(kind: type[T]) -> type[T]:
    """The same type, after msgspec has built its description."""
    if kind not in _described_types:
        with _build_lock:
            msgspec.json.Decoder(kind)
            _described_types.add(kind)
    return kind
