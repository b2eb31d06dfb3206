"""Something to read: the same on every machine, and added once."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from apps.blog import seeds

ROOT = Path(__file__).parents[3]


def blog(place: Path, *words: str, storage: str = "sqlite:///posts.db") -> tuple[int, str, str]:
    env = {**os.environ, "BLOG_STORAGE": storage, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "apps.blog", *words]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_post_is_the_same_on_every_machine() -> None:
    text = "".join(f"{seeds.draft(n).title}\n{seeds.draft(n).body}" for n in (1, 2, 1000))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "522cee45cefc77fc"


def test_posts_differ_and_say_their_number() -> None:
    drafts = [seeds.draft(number) for number in range(1, 101)]
    assert len({draft.body for draft in drafts}) == 100
    assert all(draft.title.startswith(f"{n}. ") for n, draft in enumerate(drafts, 1))
    for tag in ("<h2>", "<ul>", "<blockquote>", "<pre>", "<em>"):
        assert all(tag in draft.html for draft in drafts)


def test_seeding_adds_what_is_missing_and_dropping_removes_it(tmp_path: Path) -> None:
    assert blog(tmp_path, "seed", "--posts", "5")[:2] == (0, "5 posts\n")
    with sqlite3.connect(tmp_path / "posts.db") as db:
        before = db.execute("SELECT * FROM posts ORDER BY id").fetchall()
    db.close()
    assert blog(tmp_path, "seed", "--posts", "105")[:2] == (0, "105 posts\n")
    assert blog(tmp_path, "seed", "--posts", "3")[:2] == (0, "105 posts\n")
    with sqlite3.connect(tmp_path / "posts.db") as db:
        after = db.execute("SELECT * FROM posts ORDER BY id").fetchall()
    db.close()
    assert after[:5] == before
    assert [row[0] for row in after] == [*range(1, 106)]
    assert after[104][1] == seeds.draft(105).title
    assert blog(tmp_path, "count")[:2] == (0, "105\n")
    code, page, _ = blog(tmp_path, "page", "105")
    assert code == 0
    assert seeds.draft(105).html in page
    assert blog(tmp_path, "page", "106")[0] != 0
    assert blog(tmp_path, "drop")[0] == 0
    assert blog(tmp_path, "seed", "--posts", "1")[:2] == (0, "1 posts\n")


def test_what_cannot_be_reached_or_meant_is_said_in_a_line(tmp_path: Path) -> None:
    for storage in (
        "postgresql://blog:secret@127.0.0.1:1/blog",
        "oracle://blog",
        "sqlite:///no/db",
    ):
        code, out, err = blog(tmp_path, "seed", storage=storage)
        assert (code, out) == (3, "")
        assert err.startswith("blog: ")
        assert "Traceback" not in err
        assert "secret" not in err
