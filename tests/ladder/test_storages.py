"""Every storage by both of its faces, on real servers: they must not differ in anything."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from apps.blog.blocking import finish
from apps.blog.posts import Conflict, Draft, Line, NoSuchPost, Post, Unreachable
from apps.blog.settings import POSTS_PER_PAGE, Settings
from apps.blog.storage import Storage, mongodb, sql, sqlite, storage_of
from tests.integration.conftest import ROOT
from tests.ladder.conftest import ANSWER_S, FACES, Face, Mortal, mortal_mongodb, mortal_postgresql

Use = Callable[[Storage], Coroutine[Any, Any, Any]]
BLOCKING = [face for face in FACES if "blocking" in str(face.id)]


def draft(title: str, body: str = "Some *text*.") -> Draft:
    return Draft.of(title, body)


def prepared(face: Face, use: Use) -> Any:
    async def both(storage: Storage) -> Any:
        await storage.prepare()
        return await use(storage)

    return face.run(both)


async def at_once(face: Face, calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """What they gave or raised: by threads for code that blocks, by tasks for code that waits."""
    if face.async_mode:
        return list(await asyncio.gather(*calls, return_exceptions=True))

    def result(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return finish(call)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(result, calls))


# --- what is stored is what is found ---------------------------------------------------------


def test_what_is_added_is_found_in_its_order(face: Face) -> None:
    async def use(storage: Storage) -> None:
        before = int(time.time())
        added = await storage.add([draft("one"), draft("two")])
        added += await storage.add([draft("three")])
        assert [post.title for post in added] == ["one", "two", "three"]
        assert [post.id for post in added] == [1, 2, 3]
        for post in added:
            assert post.revision == 1
            assert before <= post.created == post.edited <= time.time()
            assert await storage.post(post.id) == post
        lines = [Line(post.id, post.title, post.created) for post in reversed(added)]
        page = await storage.page(1)
        assert (list(page.lines), page.posts, page.number) == (lines, 3, 1)
        (old,) = await storage.add([draft("old")], at=1_000_000_000)
        assert old.created == old.edited == 1_000_000_000

    prepared(face, use)


def test_pages_and_what_is_beyond_the_last(face: Face) -> None:
    async def use(storage: Storage) -> None:
        empty = await storage.page(1)
        assert (empty.lines, empty.posts) == ((), 0)
        posts = 2 * POSTS_PER_PAGE + 1
        await storage.add([draft(f"post {number}") for number in range(1, posts + 1)])
        results = [await storage.page(number) for number in (1, 2, 3)]
        assert [line.id for page in results for line in page.lines] == [*range(posts, 0, -1)]
        for number in (4, 10**9, 2**62, 10**30):
            beyond = await storage.page(number)
            assert (beyond.lines, beyond.posts, beyond.number) == ((), posts, number)

    prepared(face, use)


@pytest.mark.parametrize(
    "text", ["żółw 🐢 日本", "a'b\"; DROP TABLE posts; --", "?%s$1{x}", "\\u0001"]
)
def test_any_text_comes_back_as_it_was(face: Face, text: str) -> None:
    async def use(storage: Storage) -> None:
        (added,) = await storage.add([draft(text, text * 20)])
        post = await storage.post(added.id)
        assert (post.title, post.body) == (text, text * 20)

    prepared(face, use)


def test_an_edit_and_its_refusals(face: Face) -> None:
    async def use(storage: Storage) -> None:
        (added,) = await storage.add([draft("old")], at=1_000_000_000)
        edited = await storage.edit(added.id, draft("new", "other"), 1)
        assert (edited.title, edited.body, edited.revision) == ("new", "other", 2)
        assert edited.created == 1_000_000_000 < edited.edited
        assert await storage.post(added.id) == edited
        for revision in (1, 3, 0, -1, 2**31 - 1, 2**63, 10**30):
            with pytest.raises(Conflict) as conflict:
                await storage.edit(added.id, draft("late"), revision)
            assert conflict.value.revision == 2
        for number in (2, 0, -1, 2**63, 10**30):
            assert await storage.post(number) is None
            with pytest.raises(NoSuchPost):
                await storage.edit(number, draft("nobody's"), 1)
        assert await storage.post(added.id) == edited

    prepared(face, use)


def test_of_many_edits_at_once_one_wins(face: Face) -> None:
    async def use(storage: Storage) -> None:
        (post,) = await storage.add([draft("0")])
        for revision in range(1, 6):
            edits = [storage.edit(post.id, draft(f"{revision}.{n}"), revision) for n in range(12)]
            done = await at_once(face, edits)
            (won,) = [result for result in done if isinstance(result, Post)]
            lost = [result for result in done if isinstance(result, Conflict)]
            assert len(lost) == 11, done
            assert won.revision == revision + 1
            assert {conflict.revision for conflict in lost} == {revision + 1}
            assert await storage.post(post.id) == won

    prepared(face, use)


def test_posts_added_at_once_all_get_numbers_of_their_own(face: Face) -> None:
    async def use(storage: Storage) -> None:
        groups = [[draft(f"{group}.{n}") for n in range(5)] for group in range(12)]
        done = await at_once(face, [storage.add(group) for group in groups])
        assert all(isinstance(posts, list) for posts in done), done
        for group, posts in zip(groups, done, strict=True):
            assert [post.title for post in posts] == [result.title for result in group]
            assert sorted(post.id for post in posts) == [post.id for post in posts]
        assert len({post.id for posts in done for post in posts}) == 60
        assert (await storage.page(1)).posts == 60

    prepared(face, use)


def test_it_says_who_answers(face: Face) -> None:
    answer = face.run(lambda storage: storage.server_version())
    assert answer.startswith(("SQLite 3", "PostgreSQL 1", "MongoDB", "a server"))


# --- the schema ------------------------------------------------------------------------------

PREPARES = """
import asyncio, json, multiprocessing, sys
from apps.blog.blocking import finish
from apps.blog.settings import Settings
from apps.blog.storage import storage_of

def storage(async_mode):
    settings = Settings(storage_url=sys.argv[1], answer_s=float(sys.argv[2]))
    return storage_of(settings, async_mode=async_mode)

def work(number, barrier, outcomes):
    async_mode = bool(number % 2)
    barrier.wait()
    try:
        prepare = storage(async_mode).prepare()
        asyncio.run(prepare) if async_mode else finish(prepare)
        outcomes.put("prepared")
    except Exception as error:
        outcomes.put(repr(error))

def drop():
    finish(storage(False).drop())

storage(False), storage(True)  # their drivers are imported once, for all that are forked
context = multiprocessing.get_context("fork")
for _ in range(3):
    dropping = context.Process(target=drop)
    dropping.start()
    dropping.join()
    assert dropping.exitcode == 0
    barrier, outcomes = context.Barrier(8), context.Queue()
    children = [context.Process(target=work, args=(n, barrier, outcomes)) for n in range(8)]
    for child in children: child.start()
    print(json.dumps([outcomes.get() for _ in children]), flush=True)
    for child in children: child.join()
"""


@pytest.mark.parametrize("face", BLOCKING, indirect=True)
def test_eight_processes_prepare_it_at_once(face: Face) -> None:
    """Workers of either kind, three times from nothing."""
    settings = face.settings
    words = [sys.executable, "-c", PREPARES, settings.storage_url, str(settings.answer_s)]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [["prepared"] * 8] * 3

    (post,) = face.run(lambda storage: storage.add([draft("one")]))
    assert post.id == 1


def test_preparing_again_changes_nothing(face: Face) -> None:
    async def use(storage: Storage) -> None:
        await storage.add([draft("one")])
        await storage.prepare()
        await storage.prepare()
        assert (await storage.page(1)).posts == 1
        (second,) = await storage.add([draft("two")])
        assert second.id == 2

    prepared(face, use)


def test_an_older_schema_is_brought_up_and_a_newer_one_refused(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(face, lambda storage: storage.add([draft("from before")]))
    with monkeypatch.context() as future:
        future.setattr(sql, "STEPS", (*sql.STEPS, "ALTER TABLE posts ADD COLUMN mood text"))
        future.setattr(mongodb, "STEPS", mongodb.STEPS + 1)

        async def look(storage: Storage) -> None:
            await storage.prepare()
            assert (await storage.post(1)).title == "from before"
            if isinstance(storage, sql.Sql):
                assert await storage._run([("SELECT mood FROM posts", ())]) == [[(None,)]]

        face.run(look)

    with pytest.raises(Unreachable, match=r"schema is at step 2, this blog supports 1"):
        face.run(lambda storage: storage.prepare())


def test_dropped_it_can_be_prepared_anew(face: Face) -> None:
    async def use(storage: Storage) -> None:
        await storage.add([draft("one")])
        await storage.drop()
        await storage.drop()
        await storage.prepare()
        assert (await storage.page(1)).posts == 0

    prepared(face, use)


def test_dropping_takes_nothing_of_somebody_elses(mongodb: str) -> None:
    """Nothing keeps MongoDB from mixing the blog with another app's collections of that name."""
    pymongo = pytest.importorskip("pymongo")
    with pymongo.MongoClient(f"{mongodb.rpartition('/')[0]}/shop") as client:
        client.shop.counters.insert_one({"_id": "orders", "n": 17})
        url = f"{mongodb.rpartition('/')[0]}/shop"
        settings = Settings(storage_url=url, answer_s=ANSWER_S)
        storage = storage_of(settings, async_mode=False)
        finish(storage.prepare())
        finish(storage.add([draft("one")]))
        finish(storage.drop())
        finish(storage.stop())
        assert client.shop.counters.find_one() == {"_id": "orders", "n": 17}
        assert client.shop.list_collection_names() == ["counters"]
        client.drop_database("shop")


# --- a database that goes away ---------------------------------------------------------------


@pytest.fixture(scope="module", params=["postgresql", "mongodb"])
def server(request: pytest.FixtureRequest) -> Iterator[Mortal]:
    start = {"postgresql": mortal_postgresql, "mongodb": mortal_mongodb}[request.param]
    with start() as server:
        yield server


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def dying(request: pytest.FixtureRequest, server: Mortal) -> Face:
    return Face(Settings(storage_url=server.url, pool=4, answer_s=4.0), request.param)


async def comes_back(storage: Storage) -> None:
    """It needs nobody's help."""
    give_up = time.monotonic() + 120
    while True:
        try:
            await storage.prepare()
            (post,) = await storage.add([draft("again")])
            assert await storage.post(post.id) == post
            return
        except Unreachable:
            assert time.monotonic() < give_up


def test_a_killed_database_is_unreachable_and_then_there_again(dying: Face, server: Mortal) -> None:
    async def use(storage: Storage) -> None:
        (post,) = await storage.add([draft("one")])
        results = await at_once(dying, [storage.post(post.id) for _ in range(12)])
        assert results == [post] * 12  # so that there are connections to lose
        server.kill()
        for _ in range(2):
            lost = await at_once(dying, [storage.post(post.id) for _ in range(12)])
            assert {type(result) for result in lost} == {Unreachable}, lost
        with pytest.raises(Unreachable):
            await storage.edit(post.id, draft("two"), 1)
        server.begin()
        await comes_back(storage)
        results = await at_once(dying, [storage.page(1) for _ in range(12)])
        assert {page.lines[0].title for page in results} == {"again"}

    prepared(dying, use)


def test_nobody_notices_one_that_was_restarted_meanwhile(dying: Face, server: Mortal) -> None:
    """Connections that died unused are not handed out."""

    async def use(storage: Storage) -> None:
        await at_once(dying, [storage.page(1) for _ in range(12)])
        server.kill()
        server.begin()
        if server.kind == "mongodb":  # its driver has to find out first; and posts are gone
            await comes_back(storage)
        results = await at_once(dying, [storage.page(1) for _ in range(12)])
        assert not [result for result in results if isinstance(result, Exception)], results

    prepared(dying, use)


def test_a_hung_database_is_unreachable_too(dying: Face, server: Mortal) -> None:
    async def use(storage: Storage) -> None:
        await storage.page(1)
        with server.hung():
            lost = await at_once(dying, [storage.page(1) for _ in range(6)])
            assert {type(result) for result in lost} == {Unreachable}, lost
        await comes_back(storage)

    prepared(dying, use)


@pytest.mark.parametrize("async_mode", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////no/such/directory.db",
        "postgresql://nobody@127.0.0.1:1/nothing",
        "mongodb://127.0.0.1:1/nothing",
    ],
)
def test_a_database_that_was_never_there(url: str, async_mode: bool) -> None:
    face = Face(Settings(storage_url=url, answer_s=0.5), async_mode)
    with pytest.raises(Unreachable):
        face.run(lambda storage: storage.prepare())
    with pytest.raises(Unreachable):
        face.run(lambda storage: storage.page(1))


# --- what is cut short -----------------------------------------------------------------------


def test_cancelled_calls_give_their_connections_back(face: Face) -> None:
    """Fewer connections than calls, most of which are cancelled somewhere on their way."""
    if not face.async_mode:
        pytest.skip("blocking code cannot be cancelled")
    few = replace(face, settings=replace(face.settings, pool=2))

    async def use(storage: Storage) -> None:
        (post,) = await storage.add([draft("one")])
        for turn in range(60):
            calls = [asyncio.ensure_future(storage.post(post.id)) for _ in range(8)]
            for _ in range(turn % 12):
                await asyncio.sleep(0)
            for call in calls[turn % 3 :: 2]:
                call.cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(result) for result in done} <= {Post, asyncio.CancelledError}, done
        results = await asyncio.gather(*(storage.post(post.id) for _ in range(8)))
        assert results == [post] * 8

    prepared(few, use)


def test_a_failed_batch_leaves_nothing_behind(face: Face) -> None:
    """All or none, and the connection is good for the next one."""
    good = draft("good")
    bad = replace(good, title="zero \x00 byte" if "postgres" in face.settings.storage_url else None)
    if "mongodb" in face.settings.storage_url:
        pytest.skip("a lone server has no transactions")

    async def use(storage: Storage) -> None:
        with pytest.raises(Exception, match=r"NULL|NUL"):
            await storage.add([good, bad])
        assert (await storage.page(1)).posts == 0
        await storage.add([good, good])
        assert (await storage.page(1)).posts == 2

    prepared(face, use)


def test_who_prepares_sqlite_waits_for_another_who_does(tmp_path: Any) -> None:
    path = tmp_path / "posts.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, other.execute, ["COMMIT"]).start()

    face = Face(Settings(storage_url=f"sqlite:///{path}", answer_s=ANSWER_S), True)
    assert prepared(face, lambda storage: storage.page(1)).posts == 0
    other.close()


def test_another_error_than_a_busy_sqlite_file_is_told_at_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "posts.db"
    sqlite3.connect(path).execute("CREATE TABLE posts (number)").connection.close()
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it tries again"))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        sqlite.enable_wal(db)
    db.close()


def test_a_writer_of_sqlite_is_waited_for(tmp_path: Any) -> None:
    path = tmp_path / "posts.db"
    face = Face(Settings(storage_url=f"sqlite:///{path}", answer_s=ANSWER_S), True)

    async def use(storage: Storage) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        adding = asyncio.ensure_future(storage.add([draft("one")]))
        assert (await storage.page(1)).posts == 0  # readers are not held up
        other.execute("COMMIT")
        other.close()
        assert [post.title for post in await adding] == ["one"]

    prepared(face, use)
