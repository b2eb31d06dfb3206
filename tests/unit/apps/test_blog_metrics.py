"""The metrics of a worker, and how other processes read them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.blog.metrics import NAMES, Metrics
from workerlab.observe.app_metrics import read_metrics

ROOT = Path(__file__).parents[3]


def test_metrics_are_read_while_they_are_written(tmp_path: Path) -> None:
    metrics = Metrics(str(tmp_path))
    path = tmp_path / f"metrics-{os.getpid()}.bin"
    assert read_metrics(path) == dict.fromkeys(NAMES, 0)
    metrics.add("requests")
    metrics.add("storage_ns", 2**40)
    assert read_metrics(path) == {**dict.fromkeys(NAMES, 0), "requests": 1, "storage_ns": 2**40}
    assert metrics.total("storage_ns") == 2**40


def test_time_is_counted_even_if_the_block_raises() -> None:
    metrics = Metrics()
    with metrics.timed("template_ns"):
        pass
    first_ns = metrics.total("template_ns")
    assert first_ns > 0
    with pytest.raises(ValueError, match="nothing"), metrics.timed("template_ns"):
        raise ValueError("nothing")
    assert metrics.total("template_ns") > first_ns


def test_threads_lose_no_counts() -> None:
    metrics = Metrics()

    def count(_: int) -> None:
        for _ in range(20_000):
            metrics.add("requests")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(count, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert metrics.total("requests") == 80_000


FORKING = """
import os, signal, sys
from apps.blog.metrics import METRICS
METRICS.add("requests", 5)
child = os.fork()
if not child:
    METRICS.add("requests", 7)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
print(os.getpid(), child)
"""


def test_each_process_has_a_file_that_outlives_it(tmp_path: Path) -> None:
    env = {**os.environ, "WORKERLAB_METRICS": str(tmp_path)}
    argv = [sys.executable, "-c", FORKING]
    parent, child = subprocess.check_output(argv, cwd=ROOT, env=env, text=True).split()
    assert read_metrics(tmp_path / f"metrics-{parent}.bin")["requests"] == 5
    assert read_metrics(tmp_path / f"metrics-{child}.bin")["requests"] == 7


def test_without_the_variable_there_is_no_file(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import apps.blog.metrics"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)
    assert not list(tmp_path.iterdir())
