"""Concurrent editors and readers on several workers: no reader sees a post older than the blog
allows.

Times are those of the client: an edit is answered once its response is read, and a page is
requested before its connection is opened. A page requested BOUND_S or more after an edit was
answered must show that edit or a later one. Delays on a busy machine only make the check more
lenient, so no test depends on speed. Editors and readers pause briefly between requests, and for
longer while only time has to pass.
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

from tests.builders.conditions import until
from tests.ladder.conftest import Answer, Blog, Blogs, restartable_postgresql, restartable_redis

WORKERS = 2
BOUND_S = 1.0  # BLOG_LOCAL_EXPIRY
PAUSE_S = 0.03  # between two requests of a thread: they must overlap without using both cores
LONG_PAUSE_S = 0.1  # the same, while only time has to pass
HOT = (1, 2, 3)  # posts that are read and edited
COLD = 9  # a post that has not been read
POSTS = 10
READERS, EDITORS = 5, 3
MARK = re.compile(r"mark-(\d+)-(\d+)-(\d+)")  # post, revision, editor
FORM = re.compile(r'name="revision" value="(\d+)"')


@dataclass(frozen=True)
class Edit:
    post: int
    revision: int  # the new one
    answered_s: float


@dataclass(frozen=True)
class Read:
    post: int
    revision: int  # the displayed one
    requested_s: float


def stale_reads(edits: Sequence[Edit], reads: Sequence[Read], bound_s: float) -> list[str]:
    """Reads of a revision that was replaced `bound_s` or more before the request."""
    history = {post: _newest([edit for edit in edits if edit.post == post]) for post in HOT}
    stale = []
    for read in reads:
        times_s, revisions = history[read.post]
        answered = bisect.bisect_right(times_s, read.requested_s - bound_s)
        newest = revisions[answered - 1] if answered else 0
        if newest > read.revision:
            stale.append(f"post {read.post}: {read.revision} shown, {newest} answered long before")
    return stale


def _newest(edits: Sequence[Edit]) -> tuple[list[float], list[int]]:
    """The times of all answers in order, and the newest revision at each."""
    ordered = sorted(edits, key=lambda edit: edit.answered_s)
    revisions = [edit.revision for edit in ordered]
    return [edit.answered_s for edit in ordered], list(itertools.accumulate(revisions, max))


def test_stale_reads_are_detected() -> None:
    edits = [Edit(1, 2, 10.0), Edit(1, 3, 11.0), Edit(2, 7, 5.0)]
    fresh = [Read(1, 1, 10.9), Read(1, 2, 11.0), Read(1, 2, 11.9), Read(1, 3, 12.0), Read(3, 1, 99)]
    assert stale_reads(edits, fresh, 1.0) == []
    assert len(stale_reads(edits, [Read(1, 1, 11.0), Read(1, 2, 12.0), Read(2, 6, 6.0)], 1.0)) == 3


@dataclass
class Crowd:
    """Editors and readers of a blog, one thread each. `bound_s`: the maximum age of a page;
    `edits`, `reads`: the successful ones; `refused`, `failed`: failed answers to editors and to
    readers; `broken`: inconsistent answers."""

    blog: Blog
    bound_s: float = BOUND_S
    edits: list[Edit] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    refused: list[Answer] = field(default_factory=list)
    failed: list[Answer] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    pause_s: float = PAUSE_S

    def edit(self, editor: int) -> None:
        rng = random.Random(editor)
        while not self.stop.wait(self.pause_s):
            post = rng.choice(HOT)
            form = self.blog.ask("GET", f"/posts/{post}/edit")  # bypasses all caches
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
        rng = random.Random(-reader)
        while not self.stop.wait(self.pause_s):
            post = rng.choice(HOT)
            requested_s = time.monotonic()
            answer = self.blog.ask("GET", f"{rng.choice(('', '/api'))}/posts/{post}")
            if answer.status != 200:
                self.failed.append(answer)
                continue
            marks = set(MARK.findall(answer.body))
            if len(marks) > 1 or any(int(mark[0]) != post for mark in marks):
                self.broken.append(f"post {post} shows {marks}")
            revision = max((int(mark[1]) for mark in marks), default=1)
            self.reads.append(Read(post, revision, requested_s))

    def wait_for_more(self, edits: int = 20, reads: int = 100) -> None:
        """Wait for that many more, and for a read after the bound of the last edit."""
        edits, reads = len(self.edits) + edits, len(self.reads) + reads
        until(lambda: len(self.edits) >= edits and len(self.reads) >= reads, "edits and reads")
        end_of_bound_s = self.edits[-1].answered_s + self.bound_s
        with self.slower():
            until(lambda: self.reads[-1].requested_s > end_of_bound_s, "reads after the bound")

    @contextmanager
    def slower(self) -> Iterator[None]:
        self.pause_s = LONG_PAUSE_S
        yield
        self.pause_s = PAUSE_S

    def stale(self) -> list[str]:
        return stale_reads(list(self.edits), list(self.reads), self.bound_s)


@contextmanager
def crowd(blog: Blog, bound_s: float = BOUND_S) -> Iterator[Crowd]:
    """Run editors and readers. At the end all answers must be consistent and all workers alive."""
    visitors = Crowd(blog, bound_s)
    errors: list[BaseException] = []

    def run(work: object, number: int) -> None:
        try:
            work(number)
        except (OSError, AssertionError, KeyError, ValueError, http.client.HTTPException) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(visitors.edit, n)) for n in range(EDITORS)]
    threads += [threading.Thread(target=run, args=(visitors.read, n)) for n in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        yield visitors
    finally:
        visitors.stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert visitors.broken == []
    assert blog.server.lost() is None
    assert "Traceback" not in blog.server.log.read_text()


BOTH_CACHES = {"BLOG_LOCAL": "1", "BLOG_LOCAL_EXPIRY": f"{BOUND_S}", "BLOG_REDIS_EXPIRY": "3600"}


def caches_were_hit(blog: Blog, env: dict[str, str]) -> bool:
    """Whether exactly the caches that `env` enables had hits."""
    counts = blog.metrics()
    hits = (counts["local_hits"] > 0, counts["redis_hits"] > 0)
    return hits == (env["BLOG_LOCAL"] == "1", "BLOG_REDIS" in env)


def redis_answers(blog: Blog) -> int:
    """Successful round trips to Redis, plus those in flight."""
    counts = blog.metrics()
    return counts["redis_trips"] - counts["redis_failed"]


@pytest.mark.parametrize(
    ("worker_class", "storage", "local", "has_redis"),
    [
        ("sync", "postgresql", "1", True),
        ("gthread", "postgresql", "1", True),
        ("sync", "postgresql", "0", True),
        ("uvicorn", "sqlite", "1", False),
        ("uvicorn", "mongodb", "1", False),
    ],
)
def test_readers_see_edits_within_the_bound(
    worker_class: str, storage: str, local: str, has_redis: bool, blog: Blogs,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """With Redis only, they see an answered edit at once."""
    env = {**BOTH_CACHES, "BLOG_LOCAL": local}
    if storage != "sqlite":
        env["BLOG_STORAGE"] = request.getfixturevalue(storage)
    if has_redis:
        env["BLOG_REDIS"] = request.getfixturevalue("empty_redis")
    bound_s = BOUND_S if local == "1" else 0.0
    with blog(worker_class, WORKERS, POSTS, **env) as site, crowd(site, bound_s) as visitors:
        for _ in range(2):
            visitors.wait_for_more()
    assert (visitors.stale(), visitors.failed, visitors.refused) == ([], [], [])
    assert caches_were_hit(site, env)


def test_a_cache_that_exceeds_the_bound_is_detected(
    blog: Blogs, postgresql: str, empty_redis: str
) -> None:
    """Editors are slow, because each edit also updates the cache of the worker that handles it."""
    env = {**BOTH_CACHES, "BLOG_STORAGE": postgresql, "BLOG_REDIS": empty_redis}
    env["BLOG_LOCAL_EXPIRY"] = "60"
    with blog("sync", WORKERS, POSTS, **env) as site, crowd(site) as visitors:
        visitors.pause_s = BOUND_S / 2
        until(visitors.stale, "a stale page is seen")


@pytest.mark.parametrize(
    ("worker_class", "local"), [("gthread", "0"), ("uvicorn", "0"), ("uvicorn", "1")]
)
def test_the_bound_holds_while_redis_is_down(
    worker_class: str, local: str, blog: Blogs, postgresql: str
) -> None:
    bound_s = BOUND_S if local == "1" else 0.0
    with restartable_redis() as redis:
        env = {**BOTH_CACHES, "BLOG_STORAGE": postgresql, "BLOG_REDIS": redis.url}
        env["BLOG_LOCAL"] = local
        with blog(worker_class, WORKERS, POSTS, **env) as site, crowd(site, bound_s) as visitors:
            visitors.wait_for_more()
            assert caches_were_hit(site, env)
            redis.kill()
            with site.counted() as counts:
                visitors.wait_for_more()
            with visitors.slower():
                redis.start()
            hits, answers = site.metrics()["redis_hits"], redis_answers(site)
            until(lambda: redis_answers(site) > answers + 100, "edits reach Redis again")
            if local == "0":  # otherwise edits update the local caches before these expire
                until(lambda: site.metrics()["redis_hits"] > hits, "readers use Redis again")
            visitors.wait_for_more()
    assert (visitors.stale(), visitors.failed, visitors.refused) == ([], [], [])
    assert counts["storage_trips"] > 0
    assert counts["redis_failed"] > 0


@pytest.mark.parametrize("worker_class", ["sync", "uvicorn"])
def test_a_killed_postgresql_gives_503_and_recovers(
    worker_class: str, blog: Blogs, empty_redis: str
) -> None:
    """Readers are served from Redis; edits, and reads of posts in no cache, get 503."""
    with restartable_postgresql() as storage:
        env = {**BOTH_CACHES, "BLOG_STORAGE": storage.url, "BLOG_REDIS": empty_redis}
        with blog(worker_class, WORKERS, POSTS, **env) as site, crowd(site) as visitors:
            visitors.wait_for_more()
            storage.kill()
            reads, refused = len(visitors.reads), len(visitors.refused)
            until(lambda: len(visitors.refused) > refused + 20, "editors are refused")
            until(lambda: len(visitors.reads) > reads + 100, "readers are served")
            cold = site.ask("GET", f"/posts/{COLD}")
            with visitors.slower():
                storage.start()
            visitors.wait_for_more()
            assert site.ask("GET", f"/posts/{COLD}").status == 200
    assert (visitors.stale(), visitors.failed) == ([], [])
    for answer in (cold, *visitors.refused):
        assert (answer.status, answer.headers.get("retry-after")) == (503, "1")
    assert Counter(answer.status for answer in visitors.refused)[503] > 20
