"""The codec of all that the lab writes to read it again: JSON, by msgspec, with the model's types.

A field that is not known is passed over, one that is missing has its default or is an error: so a
field can be added without a new schema. Not read here is what comes from outside, with checks of
its own: what load tools print (their parsers raise ParseError), the probe's maps, and what the
isolated programs of the lab say to it.

All that msgspec reads, it reads by way of this module, for the lab has threads: it works out a type
when it first meets it, and another thread that meets the type meanwhile reads what is half worked
out, which is a segmentation fault (msgspec 0.22, with an interpreter that has a GIL).
"""

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_working_out = threading.Lock()
_worked_out: set[object] = set()


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


def decode(data: bytes | str, kind: type[T], *, strict: bool = True) -> T:
    """The inverse of `encode`; not strict: 1.0 is a whole number, too. Raises ValueError for what
    is no JSON, or no `kind`."""
    return msgspec.json.decode(data, type=_known(kind), strict=strict)


def plain(value: object) -> Any:
    """As it would be after it was written and read again: `convert` is the inverse."""
    return msgspec.to_builtins(value)


def convert(value: object, kind: type[T], made: Callable[[type, Any], Any] | None = None) -> T:
    """A `kind` from what is decoded already; `made(cls, value)` for what msgspec does not know.
    Raises ValueError."""
    return msgspec.convert(value, _known(kind), dec_hook=made)


def schemas(kinds: Iterable[type]) -> dict[str, Any]:
    """JSON Schema of these Structs and all that they are made of, by name."""
    with _working_out:
        return msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")[1]


def _known(kind: type[T]) -> type[T]:
    """The same, once msgspec has worked out all that it is made of."""
    if kind not in _worked_out:
        with _working_out:
            msgspec.json.Decoder(kind)
            _worked_out.add(kind)
    return kind
