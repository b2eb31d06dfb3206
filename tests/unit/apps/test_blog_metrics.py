"""What a worker counts, and what is read of it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from apps.blog.ledger import MAGIC, NAMES, Ledger, read

ROOT = Path(__file__).parents[3]


def test_it_is_read_while_it_is_written(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    path = tmp_path / f"blog-{os.getpid()}.ledger"
    assert read(path) == dict.fromkeys(NAMES, 0)
    ledger.add("requests")
    ledger.add("storage_ns", 2**40)
    assert read(path) == {**dict.fromkeys(NAMES, 0), "requests": 1, "storage_ns": 2**40}
    assert ledger.total("storage_ns") == 2**40


def test_time_is_counted_where_it_raises_too() -> None:
    ledger = Ledger()
    with ledger.timed("template_ns"):
        pass
    once = ledger.total("template_ns")
    assert once > 0
    with pytest.raises(ValueError, match="nothing"), ledger.timed("template_ns"):
        raise ValueError("nothing")
    assert ledger.total("template_ns") > once


def test_threads_lose_no_count() -> None:
    ledger = Ledger()
    counts = 20_000

    def count() -> None:
        for _ in range(counts):
            ledger.add("requests")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert ledger.total("requests") == 4 * counts


FORKS = """
import os, signal, sys
from apps.blog.ledger import LEDGER
LEDGER.add("requests", 5)
child = os.fork()
if not child:
    LEDGER.add("requests", 7)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
print(os.getpid(), child)
"""


def test_each_process_has_its_own_and_it_outlives_a_killed_one(tmp_path: Path) -> None:
    env = {**os.environ, "BLOG_LEDGER": str(tmp_path), "WORKERLAB_TRIAL": "/nowhere"}
    words = [sys.executable, "-c", FORKS]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    parent, child = done.stdout.split()
    assert read(tmp_path / f"blog-{parent}.ledger")["requests"] == 5
    assert read(tmp_path / f"blog-{child}.ledger")["requests"] == 7


def test_the_lab_is_told_where_nobody_else_is(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "BLOG_LEDGER"}
    words = [sys.executable, "-c", "import apps.blog.ledger"]
    subprocess.run(words, cwd=ROOT, env={**env, "WORKERLAB_TRIAL": str(tmp_path)}, check=True)
    (path,) = tmp_path.glob("blog-*.ledger")
    assert read(path) == dict.fromkeys(NAMES, 0)


@pytest.mark.parametrize(
    "data", [b"", MAGIC, MAGIC + bytes(8 * len(NAMES) - 1), b"ledger00" + bytes(8 * len(NAMES))]
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "blog-1.ledger"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"blog-1\.ledger is no ledger"):
        read(path)
