"""Posts through the caches: this worker's own, then Redis, then the storage.

    read    local -> Redis -> storage; the value is put into the caches that did not have it
    write   storage, then Redis, then local, and only then the response

So once the response to an edit is sent, reads from Redis or the storage get the new post. Only
other workers' local caches may still hold the old one, for at most BLOG_LOCAL_EXPIRY: this bounds
how stale a page can be. If Redis does not respond during an edit and later returns with its old
content, the bound becomes BLOG_REDIS_EXPIRY.

Every new post changes the lists, and cached lists are not invalidated. A list lives for half the
bound in Redis and half in a worker: the same in total, plus or minus the round trip to Redis.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from apps.blog.local_cache import LocalCache
from apps.blog.metrics import METRICS
from apps.blog.posts import Draft, Line, NoSuchPost, Page, Post
from apps.blog.settings import Settings
from apps.blog.storage import Storage

if TYPE_CHECKING:  # the package redis may be missing if it is not used
    from apps.blog.redis_cache import RedisCache

V = TypeVar("V", Post, Page)


@dataclass(frozen=True)
class _Kind(Generic[V]):
    """A kind of cached values: its lifetime in each cache, and how to load it from JSON."""

    local_s: float
    redis_s: float
    load: Callable[[Any], V]


class PostRepository:
    """All access to posts by pages and the API. Every method may raise Unreachable."""

    def __init__(self, settings: Settings, storage: Storage, redis: RedisCache | None) -> None:
        self._storage, self._redis = storage, redis
        self._local = LocalCache[Any](settings.local_max_entries) if settings.local else None
        bound_s = settings.local_expiry_s
        self._posts = _Kind(bound_s, settings.redis_expiry_s, lambda values: Post(**values))
        self._pages = _Kind(bound_s / 2, bound_s / 2, _page)

    async def post(self, number: int) -> Post:
        """Raises NoSuchPost."""
        return await self._read(f"post:{number}", self._posts, lambda: self.newest(number))

    async def newest(self, number: int) -> Post:
        """The post as stored, bypassing the caches, for editing. Raises NoSuchPost."""
        post = await self._storage.post(number)
        if post is None:
            raise NoSuchPost(number)
        return post

    async def page(self, number: int) -> Page:
        return await self._read(f"page:{number}", self._pages, lambda: self._storage.page(number))

    async def add(self, draft: Draft) -> Post:
        requested_s = time.monotonic()
        (post,) = await self._storage.add([draft])
        return await self._cache(post, requested_s)

    async def edit(self, number: int, draft: Draft, revision: int) -> Post:
        """Raises NoSuchPost, Conflict."""
        requested_s = time.monotonic()  # it may be edited again before this edit is cached
        return await self._cache(await self._storage.edit(number, draft, revision), requested_s)

    async def stop(self) -> None:
        await self._storage.stop()
        if self._redis is not None:
            await self._redis.stop()

    async def _read(self, key: str, kind: _Kind[V], fetch: Callable[[], Awaitable[V]]) -> V:
        if self._local is None:
            return await self._read_further(key, kind, fetch)
        METRICS.add("local_asked")
        cached: V | None = self._local.get(key)
        if cached is not None:
            METRICS.add("local_hits")
            return cached
        requested_s = time.monotonic()
        value = await self._read_further(key, kind, fetch)
        self._local.put(key, value, value.revision, requested_s, kind.local_s)
        return value

    async def _read_further(self, key: str, kind: _Kind[V], fetch: Callable[[], Awaitable[V]]) -> V:
        """The value from Redis, else from the storage."""
        text = await self._redis.get(key) if self._redis is not None else None
        if text:
            with METRICS.timed("serialise_ns"):
                return kind.load(json.loads(text))
        requested_s = time.monotonic()
        value = await fetch()
        if text is not None:
            await self._put_in_redis(key, value, kind.redis_s - (time.monotonic() - requested_s))
        return value

    async def _cache(self, post: Post, requested_s: float) -> Post:
        """Put a post into the caches, before the response to its edit."""
        key = f"post:{post.id}"
        await self._put_in_redis(key, post, self._posts.redis_s, retry=True)
        if self._local is not None:
            self._local.put(key, post, post.revision, requested_s, self._posts.local_s)
        return post

    async def _put_in_redis(
        self, key: str, value: Post | Page, expiry_s: float, retry: bool = False
    ) -> None:
        if self._redis is not None:
            with METRICS.timed("serialise_ns"):
                text = json.dumps(asdict(value)).encode()
            await self._redis.put(key, text, value.revision, expiry_s, retry=retry)


def _page(values: Any) -> Page:
    lines = tuple(Line(**line) for line in values["lines"])
    return Page(values["number"], lines, values["posts"])
