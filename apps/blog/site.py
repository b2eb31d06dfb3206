"""The access to posts and images that pages, forms and API calls share."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from apps.blog.posts import Draft
from apps.blog.repository import PostRepository
from apps.blog.settings import Settings
from apps.blog.storage import storage_of
from apps.blog.uploads import StoredImage, Uploads

T = TypeVar("T")


class Site:
    """`async_mode`: for ASGI. Opens no connection before `start` or the first request. Raises
    ImportError if a client library that the settings need is not installed."""

    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        self.storage = storage_of(settings, async_mode=async_mode)
        redis = None
        if settings.redis_url:
            from apps.blog.redis_cache import RedisCache

            redis = RedisCache(settings, async_mode=async_mode)
        self.posts = PostRepository(settings, self.storage, redis)
        self.uploads = Uploads(settings.uploads, settings.upload_max_bytes)
        self._async_mode = async_mode
        self._prepared = False

    async def start(self) -> None:
        """Bring the schema up to date, unless an earlier call has. Raises Unreachable."""
        if not self._prepared:
            await self.storage.prepare()
            self._prepared = True

    async def draft(self, title: object, body: object) -> Draft:
        """Raises BadInput."""
        return await self._off_the_loop(lambda: Draft.of(title, body))

    async def store(self, data: bytes) -> StoredImage:
        """Store an image. Raises the errors of `Uploads.store`."""
        return await self._off_the_loop(lambda: self.uploads.store(data))

    async def _off_the_loop(self, work: Callable[[], T]) -> T:
        """Run CPU-bound work: with `async_mode` in a thread, so that the event loop is free."""
        return await asyncio.to_thread(work) if self._async_mode else work()
