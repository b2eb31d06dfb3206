"""The codec of all that the lab writes to read it again: JSON, by msgspec, with the model's types.

A field that is not known is passed over, one that is missing has its default or is an error: so a
field can be added without a new schema. Not read here is what comes from outside, with checks of
its own: what load tools print (their parsers raise ParseError), the probe's maps, and what the
isolated programs of the lab say to it.
"""

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode(value: object) -> bytes:
    """One line of JSON, without its end."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a file's name may be any bytes; the rest is kept all the same
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def indented(value: object) -> bytes:
    """The same for people's eyes."""
    return msgspec.json.format(encode(value), indent=1)


def decode(data: bytes | str, kind: type[T]) -> T:
    """The inverse of `encode`. Raises ValueError for what is no JSON, or no `kind`."""
    return msgspec.json.decode(data, type=kind)


def plain(value: object) -> Any:
    """As it would be after it was written and read again: `convert` is the inverse."""
    return msgspec.to_builtins(value)


def convert(value: object, kind: type[T]) -> T:
    """A `kind` from what is decoded already. Raises ValueError."""
    return msgspec.convert(value, kind)
