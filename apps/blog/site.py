"""What every page, form and call of the API works with: posts and images."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from apps.blog.posts import Draft
from apps.blog.repository import PostRepository
from apps.blog.settings import Settings
from apps.blog.storage import storage_of
from apps.blog.uploads import Stored, Uploads

T = TypeVar("T")


class Site:
    """`async_mode`: for ASGI. Opens nothing before `start` or the first request. ImportError where
    a client of what is in the settings is not installed."""

    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        self.storage = storage_of(settings, async_mode=async_mode)
        redis = None
        if settings.redis_url:
            from apps.blog.redis_cache import RedisCache

            redis = RedisCache(settings, async_mode=async_mode)
        self.posts = PostRepository(settings, self.storage, redis)
        self.uploads = Uploads(settings.uploads, settings.upload_most_bytes)
        self._async_mode = async_mode
        self._prepared = False

    async def start(self) -> None:
        """Bring the schema up to date, or raise Unreachable: tried until it has worked once."""
        if not self._prepared:
            await self.storage.prepare()
            self._prepared = True

    async def draft(self, title: object, body: object) -> Draft:
        """Raises BadInput."""
        return await self._off_the_loop(lambda: Draft.of(title, body))

    async def store(self, data: bytes) -> Stored:
        """Raises what `Uploads.store` does."""
        return await self._off_the_loop(lambda: self.uploads.store(data))

    async def _off_the_loop(self, work: Callable[[], T]) -> T:
        """What may keep a core busy for long: not on the event loop, where all wait for it."""
        return await asyncio.to_thread(work) if self._async_mode else work()
