"""Uploads are stored under the hash of their content, and only if they are images."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from apps.blog.posts import BadInput
from apps.blog.uploads import NAME, NotAnImage, TooLarge, Uploads, megabytes
from tests.builders.blog import picture

MAX_BYTES = 100_000
HASH = "0" * 64
TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path / "uploads", MAX_BYTES)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file: section 5.3 of its specification."""
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def bomb(width: int, height: int) -> bytes:
    """A small PNG file that declares these dimensions."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", TYPES)
def test_an_image_is_named_by_its_content(uploads: Uploads, tmp_path: Path, kind: str) -> None:
    data = picture(kind)
    stored = uploads.store(data)
    assert (stored.type, stored.width, stored.height) == (TYPES[kind], 40, 30)
    assert stored.name.startswith(hashlib.sha256(data).hexdigest())
    assert uploads.load(stored.name) == (data, TYPES[kind])
    assert uploads.store(data) == stored
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == [stored.name]


def test_an_animation_is_stored_unchanged(uploads: Uploads) -> None:
    frames = [Image.new("L", (20, 20), shade) for shade in (0, 100, 200)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    stored = uploads.store(buffer.getvalue())
    assert uploads.load(stored.name) == (buffer.getvalue(), "image/gif")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9])
def test_a_truncated_image_is_refused(uploads: Uploads, kind: str, share: float) -> None:
    data = picture(kind)
    with pytest.raises(NotAnImage):
        uploads.store(data[: 1 + int(share * len(data))])


def test_an_image_with_a_wrong_checksum_is_refused(uploads: Uploads) -> None:
    data = bytearray(picture("PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(NotAnImage):
        uploads.store(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"<!doctype html><script>alert(1)</script>",
        b"\x89PNG\r\n\x1a\n<script>alert(1)</script>",
        b"GIF89a<script>alert(1)</script>",
        b"GIF89a/*" + bytes(20) + b"*/=1;alert(1)",
        b"RIFF\x10\x00\x00\x00WEBP<script></script>",
        b"\xff\xd8\xff\xe0<script>alert(1)</script>",
        b"%PDF-1.7",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        bytes(100),
    ],
)
def test_other_content_is_refused_even_if_it_begins_like_an_image(
    uploads: Uploads, tmp_path: Path, data: bytes
) -> None:
    with pytest.raises(NotAnImage):
        uploads.store(data)
    assert not (tmp_path / "uploads").exists()


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "ICO", "PPM", "PDF", "EPS"])
def test_images_of_other_types_are_refused(uploads: Uploads, kind: str) -> None:
    with pytest.raises(NotAnImage):
        uploads.store(picture(kind))


@pytest.mark.parametrize(
    "size", [(40_001, 1000), (1, 40_000_001), (60_000, 1000), (2**31 - 1, 2**31 - 1)]
)
def test_decompression_bombs_are_refused(uploads: Uploads, size: tuple[int, int]) -> None:
    with pytest.raises((TooLarge, NotAnImage)):
        uploads.store(bomb(*size))


def test_compressed_text_bombs_are_refused(uploads: Uploads) -> None:
    text = b"Comment\x00\x00" + zlib.compress(bytes(50_000_000))
    data = picture("PNG")
    with pytest.raises(NotAnImage):
        uploads.store(data[:33] + chunk(b"zTXt", text) + data[33:])


def test_an_image_has_a_maximum_size(tmp_path: Path) -> None:
    data = picture("PNG")
    assert Uploads(tmp_path, len(data)).store(data)
    with pytest.raises(TooLarge, match=f"the maximum is {megabytes(len(data) - 1)}"):
        Uploads(tmp_path, len(data) - 1).store(data)


def test_an_empty_upload_is_refused(uploads: Uploads) -> None:
    with pytest.raises(BadInput, match="empty"):
        uploads.store(b"")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_image_or_refused(data: bytes) -> None:
    directory = Path("/dev/null/none")  # storing an image there would raise another error
    for start in (b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"RIFF\xff\0\0\0WEBPVP8 "):
        with pytest.raises((NotAnImage, BadInput, TooLarge)):
            Uploads(directory, MAX_BYTES).store(start + data)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../secret", "..%2fsecret", "/etc/passwd", "secret", f"{HASH}.svg",
     f"{HASH}.PNG", f"{'A' * 64}.png", f"{HASH}.png\n", f"{HASH}.png\x00",
     f"../uploads/{HASH}.png", f"{'0' * 63}.png",
     "\u0660" * 64 + ".png"],  # an Arabic digit
)  # fmt: skip
def test_invalid_names_load_nothing(uploads: Uploads, tmp_path: Path, name: str) -> None:
    (tmp_path / "uploads").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "uploads" / "secret").write_text("secret")
    assert uploads.load(name) is None
    assert not NAME.fullmatch(name)


def test_a_missing_image_loads_nothing(uploads: Uploads) -> None:
    assert uploads.load(f"{HASH}.png") is None


def test_a_failed_write_leaves_no_file(uploads: Uploads, tmp_path: Path) -> None:
    data = picture("PNG")
    obstacle = tmp_path / "uploads" / f"{hashlib.sha256(data).hexdigest()}.png"
    (obstacle / "file").mkdir(parents=True)
    with pytest.raises(OSError, match=r"\S"):
        uploads.store(data)
    assert list((tmp_path / "uploads").iterdir()) == [obstacle]
