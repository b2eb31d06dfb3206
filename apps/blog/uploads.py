"""Uploaded images: files named by their content.

The name and type that a client declares are not trusted. Pillow determines the type. The name is
the SHA-256 of the bytes, so equal images share a file, no name can lead out of the folder, and a
file never changes once it is written.
"""

import contextlib
import hashlib
import io
import os
import re
import tempfile
import threading
import warnings
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from PIL import Image

from apps.blog.posts import BadInput, Failure

TYPES = {
    "PNG": ("png", "image/png"),
    "JPEG": ("jpg", "image/jpeg"),
    "GIF": ("gif", "image/gif"),
    "WEBP": ("webp", "image/webp"),
}
MAX_PIXELS = 40_000_000  # a small file may unpack to any size
NAME = re.compile(r"[0-9a-f]{64}\.(png|jpg|gif|webp)", re.ASCII)
TYPE_OF = dict(TYPES.values())
# Takes up to 4 bytes a pixel: in one thread at a time, or a few uploads would exhaust the memory
DECODING = threading.Lock()
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # MAX_PIXELS is less
BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises


def megabytes(count: int) -> str:
    """The exact size in millions of bytes: '5 MB', '0.1 MB'."""
    return f"{count / 1e6:.6f}".rstrip("0").rstrip(".") + " MB"


class TooLarge(Failure):
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class NotAnImage(Failure):
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


@dataclass(frozen=True)
class StoredImage:
    """A stored image. `name`: within the folder; size in pixels."""

    name: str
    type: str
    width: int
    height: int


class Uploads:
    """`folder` is created when it is first needed. Sizes in bytes."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self.max_bytes = folder.absolute(), max_bytes
        self.too_large = f"The image is too large: the maximum is {megabytes(max_bytes)}."

    def store(self, data: bytes) -> StoredImage:
        """Raises BadInput (empty), TooLarge, NotAnImage; OSError if it cannot be written."""
        if not data:
            raise BadInput("The file is empty.")
        if len(data) > self.max_bytes:
            raise TooLarge(self.too_large)
        kind, size = _identify(data)
        ending, mime = TYPES[kind]
        name = f"{hashlib.sha256(data).hexdigest()}.{ending}"
        self._write(name, data)
        return StoredImage(name, mime, *size)

    def load(self, name: str) -> tuple[bytes, str] | None:
        """The bytes and their MIME type; None if there is no such image."""
        if not NAME.fullmatch(name):
            return None
        try:
            return (self._folder / name).read_bytes(), TYPE_OF[name.rpartition(".")[2]]
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        """Write atomically: other workers may read the file at any time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".part-", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(part).replace(self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                Path(part).unlink()
            raise


def _identify(data: bytes) -> tuple[str, tuple[int, int]]:
    """Pillow's name for the format, and the size, of an intact image: checks its checksums, if any,
    and its pixels (of an animation, only the first frame). Raises TooLarge, NotAnImage."""
    try:
        with Image.open(io.BytesIO(data), formats=tuple(TYPES)) as image:
            kind, (width, height) = str(image.format), image.size
            if width * height > MAX_PIXELS:
                raise TooLarge(f"The image has {width} x {height} pixels; that is too many.")
            image.verify()
        with DECODING, Image.open(io.BytesIO(data), formats=(kind,)) as image:
            image.load()
    except BROKEN as problem:
        why = "The file is not a complete PNG, JPEG, GIF or WebP image."
        raise NotAnImage(why) from problem
    return kind, (width, height)
