"""Editors and readers at once, on some workers: nobody is shown an edit later than the blog states.

The client's clock decides, in favour of nobody: an edit counts as answered when its answer has been
read, a page as asked for before a connection is made. What is asked for BOUND_S after an edit was
answered has to show it, or a later one. A busy machine makes both moments later on the harmless
side, so that no such test depends on speed. Editors and readers hardly pause until there are enough
edits and reads; while the bound of the last edit passes, or a server comes back, they only ask now
and then.
"""

from __future__ import annotations

import bisect
import http.client
import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from redis import Redis

from tests.integration.conftest import until
from tests.ladder.conftest import Answer, Blog, Blogs, mortal_postgresql, mortal_redis

WORKERS = 2
BOUND_S = 1.0  # as stated: BLOG_LOCAL_EXPIRY
PAUSE_S = 0.03  # between two requests of each: they must overlap, not keep both cores busy
CALM_S = 0.1  # the same while nothing but time has to pass
HOT = (1, 2, 3)  # posts that are read and edited
COLD = 9  # one that nobody has read
POSTS = 10
READERS, EDITORS = 5, 3
MARK = re.compile(r"mark-(\d+)-(\d+)-(\d+)")  # post, revision, editor
FORM = re.compile(r'name="revision" value="(\d+)"')


@dataclass(frozen=True)
class Edit:
    post: int
    revision: int  # that it made
    answered_s: float


@dataclass(frozen=True)
class Read:
    post: int
    revision: int  # that was shown
    asked_s: float


def stale(edits: Sequence[Edit], reads: Sequence[Read], bound_s: float) -> list[str]:
    """What readers were shown although a newer edit was answered `bound_s` before they asked."""
    answered_edits = {post: _newest([edit for edit in edits if edit.post == post]) for post in HOT}
    wrong = []
    for read in reads:
        moments, revisions = answered_edits[read.post]
        answered = bisect.bisect_right(moments, read.asked_s - bound_s)
        newest = revisions[answered - 1] if answered else 0
        if newest > read.revision:
            wrong.append(f"post {read.post}: {read.revision} shown, {newest} answered long before")
    return wrong


def _newest(edits: Sequence[Edit]) -> tuple[list[float], list[int]]:
    """Moments in order, and the newest revision that was answered by each."""
    ordered = sorted(edits, key=lambda edit: edit.answered_s)
    revisions = [edit.revision for edit in ordered]
    return [edit.answered_s for edit in ordered], list(itertools.accumulate(revisions, max))


def test_the_checker_knows_what_is_stale() -> None:
    edits = [Edit(1, 2, 10.0), Edit(1, 3, 11.0), Edit(2, 7, 5.0)]
    fine = [Read(1, 1, 10.9), Read(1, 2, 11.0), Read(1, 2, 11.9), Read(1, 3, 12.0), Read(3, 1, 99)]
    assert stale(edits, fine, 1.0) == []
    assert len(stale(edits, [Read(1, 1, 11.0), Read(1, 2, 12.0), Read(2, 6, 6.0)], 1.0)) == 3


@dataclass
class Crowd:
    """Editors and readers of a blog, each a thread; `edits` and `reads` are what succeeded.
    `bound_s`: how old a page may be."""

    blog: Blog
    bound_s: float = BOUND_S
    edits: list[Edit] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    refused: list[Answer] = field(default_factory=list)  # what failed, of editors
    failed: list[Answer] = field(default_factory=list)  # what failed, of readers
    broken: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    pause_s: float = PAUSE_S

    def edit(self, editor: int) -> None:
        dice = random.Random(editor)
        while not self.stop.wait(self.pause_s):
            post = dice.choice(HOT)
            form = self.blog.ask("GET", f"/posts/{post}/edit")  # past every cache
            match = FORM.search(form.body)
            if form.status != 200 or not match:
                self.refused.append(form)
                continue
            revision = int(match[1])
            mark = f"mark-{post}-{revision + 1}-{editor}"
            values = {"title": mark, "body": f"It says {mark}.", "revision": revision}
            answer = self.blog.ask("PUT", f"/api/posts/{post}", values)
            if answer.status == 200:
                self.edits.append(Edit(post, revision + 1, time.monotonic()))
                if answer.json["revision"] != revision + 1:
                    self.broken.append(f"{revision} was edited to {answer.json['revision']}")
            elif answer.status != 409:  # another editor was first
                self.refused.append(answer)

    def read(self, reader: int) -> None:
        dice = random.Random(-reader)
        while not self.stop.wait(self.pause_s):
            post = dice.choice(HOT)
            asked_s = time.monotonic()
            answer = self.blog.ask("GET", f"{dice.choice(('', '/api'))}/posts/{post}")
            if answer.status != 200:
                self.failed.append(answer)
                continue
            marks = set(MARK.findall(answer.body))
            if len(marks) > 1 or any(int(mark[0]) != post for mark in marks):
                self.broken.append(f"post {post} shows {marks}")
            shown = max((int(mark[1]) for mark in marks), default=1)
            self.reads.append(Read(post, shown, asked_s))

    def more(self, edits: int, reads: int) -> None:
        """Wait for so many more; readers have to have asked after the bound of an edit."""
        edits, reads = len(self.edits) + edits, len(self.reads) + reads
        until(lambda: len(self.edits) >= edits and len(self.reads) >= reads, "edits and reads")
        last = self.edits[-1].answered_s + self.bound_s
        with self.calm():
            until(lambda: self.reads[-1].asked_s > last, "reads after the bound")

    @contextmanager
    def calm(self) -> Iterator[None]:
        self.pause_s = CALM_S
        yield
        self.pause_s = PAUSE_S

    def stale(self) -> list[str]:
        return stale(list(self.edits), list(self.reads), self.bound_s)


@contextmanager
def crowd(blog: Blog, bound_s: float = BOUND_S) -> Iterator[Crowd]:
    """At work; when it leaves, none of them was shown anything broken, and no worker has died."""
    visitors = Crowd(blog, bound_s)
    died: list[BaseException] = []

    def guarded(work: object, number: int) -> None:
        try:
            work(number)
        except (OSError, AssertionError, KeyError, ValueError, http.client.HTTPException) as error:
            died.append(error)

    threads = [threading.Thread(target=guarded, args=(visitors.edit, n)) for n in range(EDITORS)]
    threads += [threading.Thread(target=guarded, args=(visitors.read, n)) for n in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        yield visitors
    finally:
        visitors.stop.set()
        for thread in threads:
            thread.join()
    assert died == []
    assert visitors.broken == []
    assert blog.server.lost() is None
    assert "Traceback" not in blog.server.log.read_text()


BOTH_CACHES = {"BLOG_LOCAL": "1", "BLOG_LOCAL_EXPIRY": f"{BOUND_S}", "BLOG_REDIS_EXPIRY": "3600"}


def used(blog: Blog, env: dict[str, str]) -> bool:
    """Whether each of its caches was of use."""
    counts = blog.metrics()
    local = env.get("BLOG_LOCAL") == "1"
    return counts["redis_hits"] > 0 and (counts["local_hits"] > 0) == local


def redis_answers(blog: Blog) -> int:
    """How often Redis answered; requests that are under way count, too."""
    counts = blog.metrics()
    return counts["redis_trips"] - counts["redis_failed"]


def emptied(url: str) -> str:
    with Redis.from_url(url) as client:
        client.flushall()
    return url


@pytest.mark.parametrize("worker_class", ["sync", "gthread"])
def test_no_reader_sees_an_edit_later_than_the_bound(
    worker_class: str, blog: Blogs, postgresql: str, redis: str
) -> None:
    env = {**BOTH_CACHES, "BLOG_STORAGE": postgresql, "BLOG_REDIS": emptied(redis)}
    with blog(worker_class, WORKERS, POSTS, **env) as site, crowd(site) as many:
        for _ in range(2):
            many.more(edits=20, reads=100)
    assert (many.stale(), many.failed, many.refused) == ([], [], [])
    assert used(site, BOTH_CACHES)


def test_with_redis_alone_an_answered_edit_is_seen_at_once(
    blog: Blogs, postgresql: str, redis: str
) -> None:
    env = {"BLOG_STORAGE": postgresql, "BLOG_REDIS": emptied(redis), "BLOG_REDIS_EXPIRY": "3600"}
    with blog("sync", WORKERS, POSTS, **env) as site, crowd(site, bound_s=0.0) as many:
        many.more(edits=40, reads=200)
    assert (many.stale(), many.failed, many.refused) == ([], [], [])
    assert used(site, env)


@pytest.mark.parametrize("storage", ["sqlite", "mongodb"])
def test_nor_without_redis(storage: str, blog: Blogs, request: pytest.FixtureRequest) -> None:
    """The worker's own cache alone keeps the bound."""
    env = dict(BOTH_CACHES)
    if storage != "sqlite":
        env["BLOG_STORAGE"] = request.getfixturevalue(storage)
    with blog("uvicorn", WORKERS, POSTS, **env) as site, crowd(site) as many:
        for _ in range(2):
            many.more(edits=20, reads=100)
    assert (many.stale(), many.failed, many.refused) == ([], [], [])
    assert site.metrics()["local_hits"] > 0


def test_a_cache_that_keeps_for_longer_is_found_out(
    blog: Blogs, postgresql: str, redis: str
) -> None:
    """What the tests above look for does happen, and is seen, where the bound is not kept: while
    editors are slow, since each edit also renews the copy of the worker that made it."""
    env = {**BOTH_CACHES, "BLOG_STORAGE": postgresql, "BLOG_REDIS": emptied(redis)}
    env["BLOG_LOCAL_EXPIRY"] = "60"
    with blog("sync", WORKERS, POSTS, **env) as site, crowd(site) as many:
        many.pause_s = BOUND_S / 2
        until(many.stale, "a stale page is seen")


@pytest.mark.parametrize(
    ("worker_class", "local"), [("gthread", "0"), ("uvicorn", "0"), ("uvicorn", "1")]
)
def test_a_killed_redis_makes_it_slower_not_wrong(
    worker_class: str, local: str, blog: Blogs, postgresql: str
) -> None:
    """By either cache: the bound is kept before, meanwhile and afterwards."""
    bound_s = BOUND_S if local == "1" else 0.0
    with mortal_redis() as redis:
        env = {**BOTH_CACHES, "BLOG_STORAGE": postgresql, "BLOG_REDIS": redis.url}
        env["BLOG_LOCAL"] = local
        with blog(worker_class, WORKERS, POSTS, **env) as site, crowd(site, bound_s) as many:
            many.more(edits=20, reads=100)
            assert used(site, env)
            redis.kill()
            with site.counted() as without:
                many.more(edits=20, reads=100)
            with many.calm():
                redis.begin()
            hits, answers = site.metrics()["redis_hits"], redis_answers(site)
            until(lambda: redis_answers(site) > answers + 100, "Redis is told of edits again")
            if local == "0":  # else edits renew the workers' own copies faster than these expire
                until(lambda: site.metrics()["redis_hits"] > hits, "Redis is asked again")
            many.more(edits=20, reads=100)
    assert (many.stale(), many.failed, many.refused) == ([], [], [])
    assert without["storage_trips"] > 0
    assert without["redis_failed"] > 0


@pytest.mark.parametrize("worker_class", ["sync", "uvicorn"])
def test_a_killed_postgresql_gives_503_and_recovers(
    worker_class: str, blog: Blogs, redis: str
) -> None:
    """Who reads is served from Redis meanwhile; who edits, or wants what no cache has, is told."""
    with mortal_postgresql() as storage:
        env = {**BOTH_CACHES, "BLOG_STORAGE": storage.url, "BLOG_REDIS": emptied(redis)}
        with blog(worker_class, WORKERS, POSTS, **env) as site, crowd(site) as many:
            many.more(edits=20, reads=100)
            storage.kill()
            reads, refused = len(many.reads), len(many.refused)
            until(lambda: len(many.refused) > refused + 20, "editors are refused")
            until(lambda: len(many.reads) > reads + 100, "readers are served")
            cold = site.ask("GET", f"/posts/{COLD}")
            with many.calm():
                storage.begin()
            many.more(edits=20, reads=100)
            assert site.ask("GET", f"/posts/{COLD}").status == 200
    assert (many.stale(), many.failed) == ([], [])
    for answer in (cold, *many.refused):
        assert (answer.status, answer.headers.get("retry-after")) == (503, "1")
    assert Counter(answer.status for answer in many.refused)[503] > 20
