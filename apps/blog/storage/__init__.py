"""Where posts stand. One file per database, each with the same schema and the same steps to it.

A storage is made with `async_mode` True for ASGI (its driver awaits) or False for WSGI (it blocks).
Making one opens nothing: connections belong to the worker that first needs them, so that an app
may be loaded before Gunicorn forks. Every call of the database is one trip in the metrics.
"""

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from apps.blog.posts import ID_MOST, Conflict, Draft, NoSuchPost, Page, Post
from apps.blog.settings import Settings


class Storage(Protocol):
    """Every method raises posts.Unreachable where the database does not answer."""

    async def prepare(self) -> None:
        """Bring the schema up to date; workers may ask at once. Leaves no connection open."""

    async def post(self, number: int) -> Post | None:
        return await self._found(number) if 0 < number <= ID_MOST else None

    async def _found(self, number: int) -> Post | None:
        """One trip."""

    async def page(self, number: int) -> Page:
        """Posts by the page, newest first, `number` from 1: empty beyond the last one."""

    async def add(self, drafts: Sequence[Draft], at: int | None = None) -> list[Post]:
        """All of them or none, in their order, with rising ids; created `at`, or now."""

    async def edit(self, number: int, draft: Draft, revision: int) -> Post:
        """Raises posts.NoSuchPost; posts.Conflict where it is not at `revision` any more."""
        edited = await self._edited(number, draft, revision) if 0 < number <= ID_MOST else None
        if edited is not None:
            return edited
        post = await self.post(number)
        if post is None:
            raise NoSuchPost(number)
        raise Conflict(post.revision)

    async def _edited(self, number: int, draft: Draft, revision: int) -> Post | None:
        """As it is now; None where there is no such post at that revision."""

    async def answers(self) -> str:
        """Which server answers, and its version, in its own words."""

    async def drop(self) -> None:
        """Remove all that `prepare` made, posts included."""

    async def stop(self) -> None:
        """Close what is open."""


def storage_of(settings: Settings, *, async_mode: bool) -> Storage:
    """Imports its driver only now: ImportError where that is not installed."""
    module = importlib.import_module(f"apps.blog.storage.{settings.storage}")
    return cast("Storage", module.Storage(settings, async_mode=async_mode))
