"""Settings of the blog, read from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.blog.settings import BadSetting, Settings, read


def test_the_defaults_store_posts_in_a_file() -> None:
    assert read({}) == Settings()
    assert read({}).storage == "sqlite"
    assert read({"BLOG_UPLOADS": "", "BLOG_REDIS": ""}) == Settings()


def test_every_setting_is_read() -> None:
    environ = {
        "BLOG_STORAGE": "postgresql://me:secret@db/blog", "BLOG_REDIS": "redis://:secret@c:6380/1",
        "BLOG_LOCAL": "1", "BLOG_LOCAL_EXPIRY": "0.25", "BLOG_LOCAL_MOST": "7",
        "BLOG_REDIS_EXPIRY": "5", "BLOG_POOL": "3", "BLOG_ANSWER": "0.5",
        "BLOG_UPLOADS": "/srv/images", "BLOG_UPLOAD_MOST": "1000",
    }  # fmt: skip
    assert read(environ) == Settings(
        "postgresql://me:secret@db/blog", "redis://:secret@c:6380/1", True, 0.25, 7, 5.0, 3, 0.5,
        Path("/srv/images"), 1000,
    )  # fmt: skip
    assert "secret" not in repr(read(environ))


@pytest.mark.parametrize(
    ("url", "storage"),
    [
        ("sqlite:////var/blog.db", "sqlite"),
        ("postgres://db/blog", "postgresql"),
        ("postgresql://[::1]:5432/blog?sslmode=require", "postgresql"),
        ("mongodb://a,b/blog", "mongodb"),
        ("mongodb+srv://db.example/blog", "mongodb"),
    ],
)
def test_the_url_selects_the_storage(url: str, storage: str) -> None:
    assert read({"BLOG_STORAGE": url}).storage == storage


INVALID = {
    "BLOG_STORAGE": ("", "blog.db", "sqlite:///", "sqlite://blog.db", "postgresql:secret",
                     "mysql://me:secret@db/blog"),
    "BLOG_REDIS": ("secret", "http://me:secret@cache", "http://[secret"),
    "BLOG_LOCAL": ("yes",),
    "BLOG_LOCAL_EXPIRY": ("-1", "nan", "inf"),
    "BLOG_LOCAL_MOST": ("0", "1.5"),
    "BLOG_REDIS_EXPIRY": ("0",),
    "BLOG_POOL": ("", "2.5"),
    "BLOG_UPLOAD_MOST": ("many",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in INVALID.items() for value in values]
)
def test_an_invalid_value_is_refused_without_showing_a_password(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=rf"^{name} must .*\.$") as error:
        read({name: value})
    assert "secret" not in str(error.value)
