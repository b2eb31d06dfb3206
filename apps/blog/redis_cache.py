"""The cache in Redis, which all workers share.

    key      blog:post:17
    value    REVISION SPACE JSON

Two workers may write the same key in any order: a slow reader must not overwrite an edited post
with the value that it read before the edit. So a value is replaced only by one of the same or a
newer revision. A Redis script, which is atomic, checks that.

If Redis does not respond, the blog is slower but still correct: reads go to the storage, and skip
Redis for PAUSE_S. Edits are always written to Redis, with up to TRIES attempts, since a value that
they cannot replace stays until it expires. A value that was read is put only after a miss in Redis:
otherwise a value read during an outage could be put into an empty Redis after an edit.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis
import redis.asyncio
import redis.backoff

from apps.blog.blocking import resolve
from apps.blog.metrics import METRICS
from apps.blog.settings import Settings

T = TypeVar("T")

PAUSE_S = 1.0
TIMEOUT_SHARE = 0.25  # of the database's time limit: a slower cache would be useless
TRIES = 4
FAILURES = (redis.RedisError, OSError)
REPLACE = """
local old = redis.call('GET', KEYS[1])
if old and tonumber(string.match(old, '^%d+')) > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return 1
"""


class RedisCache:
    """`async_mode`: for ASGI. Connections are opened when they are first needed."""

    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        kind: Any = redis.asyncio if async_mode else redis
        pool = kind.BlockingConnectionPool.from_url(
            settings.redis_url,
            max_connections=settings.pool,
            timeout=None,  # for a free connection: those in use have time limits
            socket_timeout=TIMEOUT_SHARE * settings.answer_s,
            socket_connect_timeout=TIMEOUT_SHARE * settings.answer_s,
            retry=kind.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        self._client: Any = kind.Redis(connection_pool=pool)
        self._replace = self._client.register_script(REPLACE)
        self._paused_until_s = 0.0

    async def get(self, key: str) -> bytes | None:
        """The JSON of a value; b"" if Redis has none, None if it does not respond."""
        if time.monotonic() < self._paused_until_s:
            return None
        try:
            stored = await self._trip(lambda: self._client.get(f"blog:{key}"))
        except FAILURES:
            return None
        finally:
            METRICS.add("redis_asked")  # at the end: a lookup in progress is neither hit nor miss
        if stored is None:
            return b""
        METRICS.add("redis_hits")
        return bytes(stored).partition(b" ")[2]

    async def put(
        self, key: str, value: bytes, revision: int, expiry_s: float, *, retry: bool = False
    ) -> None:
        """Put a value, unless Redis has a newer revision. `retry`: try up to TRIES times."""
        expiry_ms = int(expiry_s * 1000)
        if expiry_ms <= 0:
            return
        arguments = [revision, value, expiry_ms]
        for _ in range(TRIES if retry else 1):
            with contextlib.suppress(*FAILURES):
                await self._trip(lambda: self._replace(keys=[f"blog:{key}"], args=arguments))
                return

    async def _trip(self, call: Callable[[], T | Awaitable[T]]) -> T:
        """Raises FAILURES."""
        METRICS.add("redis_trips")
        with METRICS.timed("redis_ns"):
            try:
                return await resolve(call())
            except FAILURES:
                METRICS.add("redis_failed")
                self._paused_until_s = time.monotonic() + PAUSE_S
                raise

    async def stop(self) -> None:
        close = getattr(self._client, "aclose", self._client.close)
        await resolve(close())
