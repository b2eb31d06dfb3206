"""Storage of posts: one file per database, each with the same schema and the same migrations.

A storage has `async_mode` True for ASGI (an asynchronous driver) or False for WSGI (a blocking
one). Creating it opens no connection: each worker opens its own when it first needs them, so the
app may be loaded before Gunicorn forks. Every call to the database is one trip in the metrics.
"""

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from apps.blog.posts import MAX_ID, Conflict, Draft, NoSuchPost, Page, Post
from apps.blog.settings import Settings


class Storage(Protocol):
    """Every method raises posts.Unreachable if the database does not respond."""

    async def prepare(self) -> None:
        """Bring the schema up to date. Multiple workers may do so at once. Leaves no connection."""

    async def post(self, number: int) -> Post | None:
        return await self._find(number) if 0 < number <= MAX_ID else None

    async def _find(self, number: int) -> Post | None:
        """The post, in one trip."""

    async def page(self, number: int) -> Page:
        """A page of posts, newest first; `number` counts from 1. Empty after the last page."""

    async def add(self, drafts: Sequence[Draft], at: int | None = None) -> list[Post]:
        """Add all drafts or none, in order, with ascending ids; created `at`, or now."""

    async def edit(self, number: int, draft: Draft, revision: int) -> Post:
        """Raises posts.NoSuchPost; posts.Conflict if the post is no longer at `revision`."""
        edited = await self._update(number, draft, revision) if 0 < number <= MAX_ID else None
        if edited is not None:
            return edited
        post = await self.post(number)
        if post is None:
            raise NoSuchPost(number)
        raise Conflict(post.revision)

    async def _update(self, number: int, draft: Draft, revision: int) -> Post | None:
        """The edited post; None if there is no such post at that revision."""

    async def server_version(self) -> str:
        """The name and version of the server, as it reports them."""

    async def drop(self) -> None:
        """Remove all that `prepare` created, posts included."""

    async def stop(self) -> None:
        """Close all connections."""


def storage_of(settings: Settings, *, async_mode: bool) -> Storage:
    """The storage in these settings. Imports its driver; raises ImportError if that is missing."""
    module = importlib.import_module(f"apps.blog.storage.{settings.storage}")
    return cast("Storage", module.Storage(settings, async_mode=async_mode))
