"""The blog's caches: the round trips of each request, and no old revision after an edit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from redis import Redis

from apps.blog import redis_cache
from apps.blog.blocking import finish
from apps.blog.metrics import METRICS
from apps.blog.posts import Draft, Post
from apps.blog.redis_cache import RedisCache
from apps.blog.repository import PostRepository
from apps.blog.settings import Settings
from apps.blog.storage import Storage, storage_of
from tests.builders.conditions import until
from tests.ladder.conftest import (
    ANSWER_S,
    Blog,
    Blogs,
    RestartableServer,
    Variant,
    flush,
    restartable_redis,
)

SHORT_TIMEOUT_S = 4.0  # for a database; a quarter of it for Redis
NO_EXPIRY = "3600"  # seconds, longer than any test
LOCAL_HIT = {"requests": 1, "local_asked": 1, "local_hits": 1}
REDIS_HIT = {"requests": 1, "redis_trips": 1, "redis_asked": 1, "redis_hits": 1}
REDIS_MISS = {"requests": 1, "redis_trips": 2, "redis_asked": 1}  # get, then put


def draft(title: str) -> Draft:
    return Draft.of(title, "Some *text*.")


# --- round trips -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StorageCase:
    """`env`: selects the storage; `trips`: the round trips to it, by path."""

    env: dict[str, str]
    trips: dict[str, int]


@pytest.fixture
def storage_case(storage: str, request: pytest.FixtureRequest) -> StorageCase:
    env = {"BLOG_LOCAL_EXPIRY": NO_EXPIRY, "BLOG_REDIS_EXPIRY": NO_EXPIRY}
    if storage != "sqlite":
        env["BLOG_STORAGE"] = request.getfixturevalue(storage)
    list_trips = 2 if storage == "mongodb" else 1  # MongoDB counts posts by a separate command
    return StorageCase(env, {"/posts/2": 1, "/api/posts/3": 1, "/": list_trips})


@pytest.mark.parametrize(
    ("worker_class", "storage"), [("sync", "mongodb"), ("uvicorn", "postgresql")]
)
def test_a_second_read_hits_the_local_cache_or_redis(
    worker_class: str, storage_case: StorageCase, blog: Blogs, empty_redis: str
) -> None:
    env = {**storage_case.env, "BLOG_REDIS": empty_redis}
    with blog(worker_class, 1, **env, BLOG_LOCAL="1") as site:
        for path, trips in storage_case.trips.items():
            first, second = _read_twice(site, path)
            assert first == {**REDIS_MISS, "local_asked": 1, "storage_trips": trips}
            assert second == LOCAL_HIT

    flush(empty_redis)
    with blog(worker_class, 1, **env) as site:
        for path, trips in storage_case.trips.items():
            first, second = _read_twice(site, path)
            assert first == {**REDIS_MISS, "storage_trips": trips}
            assert second == REDIS_HIT


@pytest.mark.parametrize("worker_class", ["sync", "uvicorn"])
@pytest.mark.parametrize("storage", ["postgresql", "mongodb", "sqlite"])
def test_without_caches_each_read_is_a_round_trip_to_the_storage(
    worker_class: str, storage_case: StorageCase, blog: Blogs
) -> None:
    with blog(worker_class, 1, **storage_case.env) as site:
        for path, trips in storage_case.trips.items():
            assert _read_twice(site, path) == [{"requests": 1, "storage_trips": trips}] * 2


def _read_twice(site: Blog, path: str) -> list[dict[str, int]]:
    """The counts of each of two requests."""
    counts_by_request = []
    for _ in range(2):
        with site.counted() as counts:
            assert site.ask("GET", path).status == 200
        counts_by_request.append(counts)
    return counts_by_request


def test_workers_share_a_post_through_redis(blog: Blogs, empty_redis: str) -> None:
    with blog("sync", 4, BLOG_REDIS=empty_redis, BLOG_REDIS_EXPIRY=NO_EXPIRY) as site:
        with Redis.from_url(empty_redis) as client, site.counted() as counts:
            bodies = {site.ask("GET", "/posts/1").body for _ in range(40)}
            gets = client.info("commandstats")["cmdstat_get"]["calls"]
        assert len(bodies) == 1
        redis_counts = {"redis_asked": 40, "redis_hits": 39, "redis_trips": 41}
        assert counts == {"requests": 40, **redis_counts, "storage_trips": 1}
        assert gets >= 40  # as counted by Redis


def test_an_edit_updates_both_caches(blog: Blogs, empty_redis: str) -> None:
    env = {"BLOG_REDIS": empty_redis, "BLOG_LOCAL": "1", "BLOG_LOCAL_EXPIRY": NO_EXPIRY}
    with blog("sync", 1, **env) as site:
        site.ask("GET", "/posts/1")
        with site.counted() as edit:
            answer = site.ask("PUT", "/api/posts/1", {"title": "New", "body": "b", "revision": 1})
        assert answer.status == 200
        assert edit == {"requests": 1, "storage_trips": 1, "redis_trips": 1}
        with site.counted() as read:
            assert ">New<" in site.ask("GET", "/posts/1").body
        assert read == LOCAL_HIT


# --- repositories: workers within one process, whose order a test controls --------------------


class SlowStorage:
    """A storage that holds back its answers until `may_answer` is set."""

    def __init__(self, config: Settings) -> None:
        self._storage = storage_of(config, async_mode=True)
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    async def post(self, number: int) -> Post | None:
        post = await self._storage.post(number)
        self.has_read.set()
        await self.may_answer.wait()
        return post


@pytest.fixture
def config(tmp_path: Path, empty_redis: str) -> Settings:
    """Both caches with long expiry, and a storage with one post."""
    settings = Settings(
        answer_s=ANSWER_S,
        storage_url=f"sqlite:///{tmp_path}/posts.db",
        redis_url=empty_redis,
        local=True,
        local_expiry_s=3600,
        redis_expiry_s=3600,
        pool=3,
    )

    async def fill(storage: Storage) -> None:
        await storage.prepare()
        await storage.add([draft("one")])

    Variant(settings, False).run(fill)
    return settings


def repository(config: Settings, storage: Any = None) -> PostRepository:
    """The repository of another worker."""
    storage = storage or storage_of(config, async_mode=True)
    return PostRepository(config, storage, RedisCache(config, async_mode=True))


def cached_revision(url: str, key: str = "blog:post:1") -> int | None:
    with Redis.from_url(url) as client:
        value = client.get(key)
    return int(value.partition(b" ")[0]) if value else None


async def test_a_late_reader_does_not_overwrite_an_edit(config: Settings) -> None:
    slow = SlowStorage(config)
    late_reader, editor, reader = repository(config, slow), repository(config), repository(config)
    reading = asyncio.ensure_future(late_reader.post(1))
    await slow.has_read.wait()
    await editor.edit(1, draft("two"), 1)
    slow.may_answer.set()
    assert (await reading).revision == 1  # it started before the edit
    assert cached_revision(config.redis_url) == 2
    assert (await reader.post(1)).title == "two"


async def test_a_late_editor_does_not_overwrite_a_newer_edit(config: Settings) -> None:
    first, second = repository(config), repository(config)
    await first.edit(1, draft("two"), 1)
    newest = await second.edit(1, draft("three"), 2)
    two = replace(newest, title="two", revision=2)
    await first._cache(two, 0.0)  # late
    assert cached_revision(config.redis_url) == 3
    assert (await repository(config).post(1)).title == "three"


@given(revisions=st.lists(st.integers(1, 2**31), min_size=1, max_size=12))
@examples(
    max_examples=40,
    deadline=None,  # machines are shared
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_redis_keeps_the_newest_revision(revisions: list[int], empty_redis: str) -> None:
    flush(empty_redis)
    cache = RedisCache(Settings(redis_url=empty_redis, answer_s=ANSWER_S), async_mode=False)
    for number, revision in enumerate(revisions, 1):
        finish(cache.put("post:1", b'{"n": %d}' % revision, revision, 3600))
        assert cached_revision(empty_redis) == max(revisions[:number])
    assert finish(cache.get("post:1")) == b'{"n": %d}' % max(revisions)
    finish(cache.stop())


def test_redis_keeps_the_newest_revision_of_concurrent_puts(empty_redis: str) -> None:
    cache = RedisCache(Settings(redis_url=empty_redis, answer_s=ANSWER_S, pool=4), async_mode=False)

    def put(revision: int) -> None:
        finish(cache.put("post:1", b"{}", revision, 3600))

    with ThreadPoolExecutor(16) as threads:
        for top in range(20, 400, 20):
            list(threads.map(put, range(top, top - 20, -1)))
            assert cached_revision(empty_redis) == top
    finish(cache.stop())


async def test_a_list_with_an_expiry_of_0_seconds_is_not_cached(config: Settings) -> None:
    """Redis refuses such an expiry; this must not count as a failure of Redis."""
    posts = repository(replace(config, local_expiry_s=0))
    failed = METRICS.total("redis_failed")
    for _ in range(2):
        assert (await posts.page(1)).posts == 1
    assert METRICS.total("redis_failed") == failed
    assert cached_revision(config.redis_url, "blog:page:1") is None


async def test_cancelled_readers_release_their_connections(config: Settings) -> None:
    posts = repository(replace(config, local=False))
    await posts.post(1)
    failed = METRICS.total("redis_failed")
    for turn in range(80):
        calls = [asyncio.ensure_future(posts.post(1)) for _ in range(9)]
        for _ in range(turn % 16):
            await asyncio.sleep(0)
        for call in calls[turn % 3 :: 2]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} <= {Post, asyncio.CancelledError}, results
    posts_read = await asyncio.gather(*(posts.post(1) for _ in range(9)))
    assert {post.title for post in posts_read} == {"one"}
    assert METRICS.total("redis_failed") == failed
    await posts.stop()


# --- a Redis that fails ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[RestartableServer]:
    with restartable_redis() as server:
        yield server


@pytest.fixture
def redis_only(config: Settings, server: RestartableServer) -> Settings:
    flush(server.url)
    return replace(config, redis_url=server.url, local=False)


async def test_reads_and_edits_work_without_redis(
    redis_only: Settings, server: RestartableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "PAUSE_S", 3600.0)
    posts = repository(redis_only)
    await posts.post(1)
    server.kill()
    try:
        trips = METRICS.total("redis_trips")
        for _ in range(5):
            assert (await posts.post(1)).revision == 1
        assert METRICS.total("redis_trips") == trips + 1  # then readers bypass it
        assert (await posts.edit(1, draft("two"), 1)).revision == 2
        assert METRICS.total("redis_trips") == trips + 1 + redis_cache.TRIES
        assert (await posts.post(1)).title == "two"
    finally:
        server.start()
    assert (await repository(redis_only).post(1)).title == "two"


async def test_async_code_gives_up_on_a_hung_redis(
    redis_only: Settings, server: RestartableServer
) -> None:
    posts = repository(replace(redis_only, answer_s=SHORT_TIMEOUT_S))
    await posts.post(1)
    with server.paused():
        assert (await posts.post(1)).revision == 1
        assert (await posts.edit(1, draft("two"), 1)).revision == 2


def test_blocking_code_gives_up_on_a_hung_redis(
    redis_only: Settings, server: RestartableServer
) -> None:
    cache = RedisCache(replace(redis_only, answer_s=SHORT_TIMEOUT_S), async_mode=False)

    def has_stored() -> bool:
        """False if the machine pauses for longer than the timeout."""
        finish(cache.put("post:1", b"{}", 1, 60.0))
        return finish(cache.get("post:1")) == b"{}"

    until(has_stored, "Redis holds the post")
    with server.paused():
        assert finish(cache.get("post:1")) is None
        finish(cache.put("post:1", b"{}", 2, 60.0, retry=True))
    finish(cache.stop())


async def test_an_edit_reaches_a_restarted_redis(
    redis_only: Settings, server: RestartableServer
) -> None:
    """The editor's idle connections are broken, and another worker has cached the old post."""
    editor, reader = repository(redis_only), repository(redis_only)
    await asyncio.gather(*(editor.post(1) for _ in range(3)))
    server.kill()
    server.start()
    await reader.post(1)
    assert cached_revision(redis_only.redis_url) == 1
    await editor.edit(1, draft("two"), 1)
    assert cached_revision(redis_only.redis_url) == 2
    assert (await reader.post(1)).title == "two"


async def test_no_old_post_is_cached_if_redis_was_down_during_the_edit(
    redis_only: Settings, server: RestartableServer
) -> None:
    slow = SlowStorage(redis_only)
    late_reader, editor = repository(redis_only, slow), repository(redis_only)
    server.kill()
    reading = asyncio.ensure_future(late_reader.post(1))
    await slow.has_read.wait()
    await editor.edit(1, draft("two"), 1)  # cannot reach Redis
    server.start()
    slow.may_answer.set()
    assert (await reading).revision == 1
    assert cached_revision(redis_only.redis_url) is None
    assert (await repository(redis_only).post(1)).title == "two"
