"""What every page, form and call of the API works with: posts and images."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from apps.blog.posts import Draft
from apps.blog.repository import PostRepository
from apps.blog.settings import Settings
from apps.blog.storage import Storage, storage_of
from apps.blog.uploads import Stored, Uploads

if TYPE_CHECKING:
    from apps.blog.redis_cache import RedisCache  # whose client may not be installed

P = ParamSpec("P")
T = TypeVar("T")


def redis_of(settings: Settings, *, async_mode: bool) -> RedisCache | None:
    """Imports Redis' client only now: ImportError where that is not installed."""
    if not settings.redis_url:
        return None
    from apps.blog.redis_cache import RedisCache

    return RedisCache(settings, async_mode=async_mode)


class Site:
    """`async_mode`: for ASGI. Opens nothing before `start` or the first request."""

    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        self.storage: Storage = storage_of(settings, async_mode=async_mode)
        redis = redis_of(settings, async_mode=async_mode)
        self.posts = PostRepository(settings, self.storage, redis)
        self.uploads = Uploads(settings.uploads, settings.upload_most_bytes)
        self._async_mode = async_mode
        self._prepared = False

    async def start(self) -> None:
        """Bring the schema up to date. Raises Unreachable; it is tried again with every request
        until it has worked once."""
        if not self._prepared:
            await self.storage.prepare()
            self._prepared = True

    async def stop(self) -> None:
        await self.posts.stop()

    async def draft(self, title: object, body: object) -> Draft:
        """Raises BadInput."""
        return await self._off_the_loop(Draft.of, title, body)

    async def store(self, data: bytes) -> Stored:
        """Raises what `Uploads.store` does."""
        return await self._off_the_loop(self.uploads.store, data)

    async def _off_the_loop(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What may keep a core busy for long: not on the event loop, where all wait for it."""
        if self._async_mode:
            return await asyncio.to_thread(work, *args, **kwargs)
        return work(*args, **kwargs)
