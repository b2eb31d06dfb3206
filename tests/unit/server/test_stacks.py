"""The stack sampler: the owner of a file, what a line calls, and the line of a real loop."""

from __future__ import annotations

import asyncio
import os
import site
import sys
import sysconfig
import time
import types
from _thread import get_ident
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders.conditions import LONG_S
from workerlab.model.evidence import CodeLine, Stacks
from workerlab.observe.spans import read_stacks
from workerlab.server.inside import families, heartbeat, stacks, waits

PACKAGES = sysconfig.get_paths()["purelib"]
needs_kernel = pytest.mark.skipif(
    not waits.counts_waits(), reason="this kernel does not say how long a thread waits for a core"
)


def code_in(path: Path | str) -> types.CodeType:
    return compile("pass", str(path), "exec")


def kind_of(files: stacks.Files, path: Path | str) -> str:
    return files.of(code_in(path))[0]


def test_owner_of_a_file(tmp_path: Path) -> None:
    files = stacks.Files(str(tmp_path), "shop.wsgi:app")
    assert files.of(code_in(tmp_path / "shop" / "orders.py")) == ("app", "shop/orders.py")
    assert files.of(code_in(f"{PACKAGES}/requests/api.py")) == ("library", "requests/api.py")
    assert kind_of(files, os.__file__) == "stdlib"
    assert kind_of(files, "<frozen importlib._bootstrap>") == "stdlib"
    assert kind_of(files, asyncio.base_events.__file__) == "loop"
    assert kind_of(files, stacks.__file__) == "loop"
    for venv in (".venv/lib/python3.10/site-packages", "vendor/dist-packages"):
        assert files.of(code_in(tmp_path / venv / "flask/app.py")) == ("library", "flask/app.py")


def test_a_virtual_environment_below_the_app_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    files = stacks.Files(str(tmp_path), "shop:app")
    assert kind_of(files, tmp_path / "venv" / "src" / "library.py") != "app"
    inside = stacks.Files(str(tmp_path / "venv" / "shop"), "shop:app")  # the app is in there
    assert kind_of(inside, tmp_path / "venv" / "shop" / "orders.py") == "app"


def test_an_installed_app_owns_its_package(tmp_path: Path) -> None:
    """Its package counts as the app wherever it is installed; here it is pytest."""
    home = Path(pytest.__file__).parent
    files = stacks.Files(str(tmp_path), "pytest:app")
    assert files.of(code_in(home / "orders.py")) == ("app", "pytest/orders.py")
    assert kind_of(files, f"{site.getsitepackages()[0]}/requests/api.py") == "library"


def work(secret: str) -> None:
    time.sleep(0.05 if secret == "hidden" else 0.0)  # line: sleeps
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass


def sample_loop(directory: Path, enough: Callable[[Stacks], bool]) -> Stacks:
    """Samples of a loop that runs `work` and yields in between, until there are enough."""

    async def main() -> None:
        worker = SimpleNamespace(
            cfg=SimpleNamespace(chdir=str(Path(__file__).parent)), app=SimpleNamespace()
        )
        loop = families.asyncio_loop(asyncio.get_running_loop())
        heart = heartbeat.start(loop, str(directory), stacks.BEAT_NS)
        stacks.start(worker, heart, get_ident(), str(directory))
        while not read_stacks(directory).samples:
            await asyncio.sleep(0.01)
        give_up = time.monotonic() + LONG_S
        while not enough(read_stacks(directory)):
            assert time.monotonic() < give_up, "too few samples"
            work("hidden")
            await asyncio.sleep(0.02)

    asyncio.run(main())
    return read_stacks(directory)


def asleep(result: Stacks) -> list[CodeLine]:
    return [
        result.lines[sample.number]
        for sample in result.samples
        if sample.number > 1 and sample.sleeps and sample.overdue_ns > 10_000_000
    ]


def enough(result: Stacks) -> bool:
    """Samples in the sleep, with the loop held up, and idle."""
    return (
        any(sample.called == "time.sleep" for sample in asleep(result))
        and any(sample.stuck_ns >= 10_000_000 for sample in result.samples)
        and any(sample.number == stacks.IDLE for sample in result.samples)
    )


@needs_kernel
def test_samples_of_a_real_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samplers: list[stacks.StackSampler] = []
    start_thread, interval = stacks.start_new_thread, sys.getswitchinterval()
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(
        stacks, "start_new_thread",
        lambda run, arguments: (samplers.append(run.__self__), start_thread(run, arguments)),
    )  # fmt: skip
    try:
        result = sample_loop(tmp_path, enough)
    finally:
        sys.setswitchinterval(interval)
        for sampler in samplers:
            sampler.stopped = True
    assert result.pid == os.getpid()
    (line_number,) = (
        number
        for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line.endswith("# line: sleeps")
    )
    (line,) = {code_line for code_line in asleep(result) if code_line.called == "time.sleep"}
    assert (line.file, line.line, line.function) == ("test_stacks.py", line_number, "work")
    assert line.app
    text = (tmp_path / f"stacks-{os.getpid()}.jsonl").read_text()
    assert "hidden" not in text


def test_one_worker_is_chosen(tmp_path: Path) -> None:
    assert [stacks.claims_sampling(str(tmp_path)) for _ in range(3)] == [True, False, False]
    assert not stacks.claims_sampling(str(tmp_path / "missing"))


def sampler_into(lines: int) -> stacks.StackSampler:
    files = stacks.Files(str(Path(__file__).parent), "")
    return stacks.StackSampler(SimpleNamespace(), get_ident(), files, None, lines)  # type: ignore[arg-type]


def test_a_full_disk_stops_the_sampler() -> None:
    """/dev/full accepts no bytes."""
    lines = os.open("/dev/full", os.O_WRONLY)
    sampler = sampler_into(lines)
    number, stuck = sampler.locate(sys._getframe(), 1, 0)
    os.close(lines)
    assert (number, stuck) == (stacks.OTHER + 1, 0)
    assert sampler.stopped


def test_the_number_of_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MAX_LINES", 1)
    lines = os.open(tmp_path / "lines", os.O_WRONLY | os.O_CREAT)
    sampler = sampler_into(lines)
    first = sampler.locate(sys._getframe(), 1, 0)[0]
    second = sampler.locate(sys._getframe(), 2, 0)[0]
    os.close(lines)
    assert (first, second) == (stacks.OTHER + 1, stacks.OTHER)
    assert (tmp_path / "lines").read_text().count("\n") == 1
