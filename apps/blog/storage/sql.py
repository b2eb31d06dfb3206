"""The statements that the two SQL storages share. Each storage executes them in its own way.

`?` is the placeholder in all statements. A published step of STEPS never changes: the next change
of the schema is a new step. Every step works in both databases.
"""

from collections.abc import Sequence
from typing import Any

from apps.blog.posts import MAX_ID, MAX_REVISION, Draft, Line, Page, Post, Unreachable, now
from apps.blog.settings import POSTS_PER_PAGE
from apps.blog.storage import Storage

Row = tuple[Any, ...]
Statement = tuple[str, Sequence[object]]

STEPS = (
    "CREATE TABLE posts (id {serial}, title text NOT NULL, body text NOT NULL, html text NOT NULL,"
    " created bigint NOT NULL, edited bigint NOT NULL, revision integer NOT NULL)",
)
COLUMNS = "id, title, body, html, created, edited, revision"
POST = f"SELECT {COLUMNS} FROM posts WHERE id = ?"
PAGE = (
    "SELECT id, title, created, (SELECT count(*) FROM posts) FROM posts"
    " ORDER BY id DESC LIMIT ? OFFSET ?"
)
COUNT = "SELECT count(*) FROM posts"
ADD = (
    "INSERT INTO posts (title, body, html, created, edited, revision) VALUES (?, ?, ?, ?, ?, 1)"
    f" RETURNING {COLUMNS}"
)
EDIT = (
    "UPDATE posts SET title = ?, body = ?, html = ?, edited = ?, revision = revision + 1"
    f" WHERE id = ? AND revision = ? RETURNING {COLUMNS}"
)
CREATE_SCHEMA = "CREATE TABLE IF NOT EXISTS blog_schema (step integer NOT NULL)"
CURRENT_STEP = "SELECT coalesce(max(step), 0) FROM blog_schema"
ADD_STEP = "INSERT INTO blog_schema (step) VALUES (?)"


class Sql(Storage):
    async def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """The rows of each statement. Runs them in one transaction. Raises Unreachable."""
        raise NotImplementedError

    async def _find(self, number: int) -> Post | None:
        (rows,) = await self._run([(POST, (number,))])
        return Post(*rows[0]) if rows else None

    async def page(self, number: int) -> Page:
        offset = POSTS_PER_PAGE * (number - 1)
        if offset > MAX_ID:
            return Page(number, (), await self._count())
        (rows,) = await self._run([(PAGE, (POSTS_PER_PAGE, offset))])
        posts = rows[0][3] if rows else await self._count()
        return Page(number, tuple(Line(*row[:3]) for row in rows), posts)

    async def _count(self) -> int:
        (((posts,),),) = await self._run([(COUNT, ())])
        return int(posts)

    async def add(self, drafts: Sequence[Draft], at: int | None = None) -> list[Post]:
        at = now() if at is None else at
        rows = [(draft.title, draft.body, draft.html, at, at) for draft in drafts]
        added = await self._run([(ADD, row) for row in rows])
        return [Post(*row) for (row,) in added]

    async def drop(self) -> None:
        await self._run([(f"DROP TABLE IF EXISTS {name}", ()) for name in ("posts", "blog_schema")])

    async def _update(self, number: int, draft: Draft, revision: int) -> Post | None:
        if not 0 < revision < MAX_REVISION:  # an edit increments it
            return None
        values = (draft.title, draft.body, draft.html, now(), number, revision)
        (rows,) = await self._run([(EDIT, values)])
        return Post(*rows[0]) if rows else None


def trips(statements: Sequence[Statement]) -> int:
    """The round trips to the database; two or more statements also need BEGIN and COMMIT."""
    return len(statements) + 2 if len(statements) > 1 else len(statements)


def missing_steps(at: int, serial: str) -> list[tuple[int, str]]:
    """(number, statement) of the steps after step `at`. Raises Unreachable for a newer schema."""
    if at > len(STEPS):
        raise Unreachable(f"its schema is at step {at}, this blog supports {len(STEPS)}")
    return [(number, step.format(serial=serial)) for number, step in enumerate(STEPS[at:], at + 1)]
