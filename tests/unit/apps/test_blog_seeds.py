"""Seed posts: the same on every machine, and added once."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from apps.blog import seeds
from apps.blog.__main__ import main

ROOT = Path(__file__).parents[3]
BlogCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_blog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> BlogCommand:
    """Runs `python -m apps.blog` with arguments; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, storage: str = "sqlite:///posts.db") -> tuple[int, str, str]:
        monkeypatch.setenv("BLOG_STORAGE", storage)
        try:
            code = main(arguments)
        except SystemExit as error:
            code = 1 if isinstance(error.code, str) else error.code or 0
        return code, *capfd.readouterr()

    return run


def test_a_post_is_the_same_on_every_machine() -> None:
    text = "".join(f"{seeds.draft(n).title}\n{seeds.draft(n).body}" for n in (1, 2, 1000))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "522cee45cefc77fc"


def test_posts_differ_and_are_numbered() -> None:
    drafts = [seeds.draft(number) for number in range(1, 101)]
    assert len({draft.body for draft in drafts}) == 100
    assert all(draft.title.startswith(f"{n}. ") for n, draft in enumerate(drafts, 1))
    for tag in ("<h2>", "<ul>", "<blockquote>", "<pre>", "<em>"):
        assert all(tag in draft.html for draft in drafts)


def stored_posts(directory: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(directory / "posts.db")) as db:
        return db.execute("SELECT * FROM posts ORDER BY id").fetchall()


def test_seeding_adds_missing_posts_and_dropping_removes_all(
    tmp_path: Path, run_blog: BlogCommand
) -> None:
    env = {**os.environ, "BLOG_STORAGE": "sqlite:///posts.db", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "apps.blog", "seed", "--posts", "5"]
    assert subprocess.check_output(argv, cwd=tmp_path, env=env) == b"5 posts\n"
    first_posts = stored_posts(tmp_path)
    assert run_blog("seed", "--posts", "105")[:2] == (0, "105 posts\n")
    assert run_blog("seed", "--posts", "3")[:2] == (0, "105 posts\n")
    posts = stored_posts(tmp_path)
    assert posts[:5] == first_posts
    assert [row[0] for row in posts] == [*range(1, 106)]
    assert posts[104][1] == seeds.draft(105).title
    assert run_blog("count")[:2] == (0, "105\n")
    code, page, _ = run_blog("page", "105")
    assert code == 0
    assert seeds.draft(105).html in page
    assert run_blog("page", "106")[0] != 0
    assert run_blog("drop")[0] == 0
    assert run_blog("seed", "--posts", "1")[:2] == (0, "1 posts\n")


@pytest.mark.parametrize(
    "storage", ["postgresql://blog:secret@127.0.0.1:1/blog", "oracle://blog", "sqlite:///no/db"]
)
def test_an_unreachable_or_unknown_storage_is_reported_in_one_line(
    run_blog: BlogCommand, storage: str
) -> None:
    code, out, err = run_blog("seed", storage=storage)
    assert (code, out) == (3, "")
    assert err.startswith("blog: ")
    assert "Traceback" not in err
    assert "secret" not in err
