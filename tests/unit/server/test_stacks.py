"""The stack sampler: the owner of a file, and the line that holds up a real loop."""

from __future__ import annotations

import asyncio
import os
import site
import sys
import sysconfig
import time
from _thread import get_ident
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders.conditions import LONG_S
from tests.builders.processes import compute
from workerlab.model.evidence import CodeLine, Stacks
from workerlab.observe.spans import read_stacks
from workerlab.server.inside import families, heartbeat, stacks, waits


def owner(files: stacks.Files, path: Path | str) -> tuple[str, str]:
    """The kind of a file, and the name to show."""
    return files.of(compile("pass", str(path), "exec"))


def test_the_location_of_a_file_shows_its_owner(tmp_path: Path) -> None:
    files = stacks.Files(str(tmp_path), "shop.wsgi:app")
    packages = sysconfig.get_paths()["purelib"]
    assert owner(files, tmp_path / "shop" / "orders.py") == ("app", "shop/orders.py")
    assert owner(files, f"{packages}/requests/api.py") == ("library", "requests/api.py")
    assert owner(files, os.__file__)[0] == "stdlib"
    assert owner(files, "<frozen importlib._bootstrap>")[0] == "stdlib"
    assert owner(files, asyncio.base_events.__file__)[0] == "loop"
    assert owner(files, stacks.__file__)[0] == "loop"
    for venv in (".venv/lib/python3.10/site-packages", "vendor/dist-packages"):
        assert owner(files, tmp_path / venv / "flask/app.py") == ("library", "flask/app.py")


def test_a_virtual_environment_below_the_app_does_not_belong_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    outside = stacks.Files(str(tmp_path), "shop:app")
    assert owner(outside, tmp_path / "venv" / "src" / "library.py")[0] != "app"
    inside = stacks.Files(str(tmp_path / "venv" / "shop"), "shop:app")
    assert owner(inside, tmp_path / "venv" / "shop" / "orders.py")[0] == "app"


def test_an_installed_app_owns_its_package(tmp_path: Path) -> None:
    """Wherever it is installed; here the app is pytest."""
    files = stacks.Files(str(tmp_path), "pytest:app")
    assert owner(files, Path(pytest.__file__).parent / "orders.py") == ("app", "pytest/orders.py")
    assert owner(files, f"{site.getsitepackages()[0]}/requests/api.py")[0] == "library"


def work(secret: str) -> None:
    time.sleep(0.05 if secret == "hidden" else 0.0)  # line: sleeps
    compute(0.05)


def sample_loop(directory: Path) -> Stacks:
    """Samples of a loop that runs `work` and yields in between, until there are enough."""

    async def main() -> None:
        cfg = SimpleNamespace(chdir=str(Path(__file__).parent))
        worker = SimpleNamespace(cfg=cfg, app=SimpleNamespace())
        loop = families.asyncio_loop(asyncio.get_running_loop())
        heart = heartbeat.start(loop, str(directory), stacks.BEAT_NS)
        stacks.start(worker, heart, get_ident(), str(directory))
        while not read_stacks(directory).samples:
            await asyncio.sleep(0.01)
        give_up = time.monotonic() + LONG_S
        while not are_sufficient(read_stacks(directory)):
            assert time.monotonic() < give_up, "too few samples"
            work("hidden")
            await asyncio.sleep(0.02)

    asyncio.run(main())
    return read_stacks(directory)


def lines_asleep(result: Stacks) -> list[CodeLine]:
    """The lines of the app in which the overdue loop slept."""
    return [
        result.lines[sample.number]
        for sample in result.samples
        if sample.number > 1 and sample.sleeps and sample.overdue_ns > 10_000_000
    ]


def are_sufficient(result: Stacks) -> bool:
    """Whether there are samples of the sleep, of a loop that is held up, and of an idle loop."""
    return (
        any(line.called == "time.sleep" for line in lines_asleep(result))
        and any(sample.stuck_ns >= 10_000_000 for sample in result.samples)
        and any(sample.number == stacks.IDLE for sample in result.samples)
    )


@pytest.mark.skipif(not waits.counts_waits(), reason="this kernel does not count waits")
@pytest.mark.usefixtures("_no_fork_hooks")
def test_samples_show_the_line_that_holds_up_a_real_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers: list[stacks.StackSampler] = []
    start_thread, interval = stacks.start_new_thread, sys.getswitchinterval()
    monkeypatch.setattr(
        stacks, "start_new_thread",
        lambda run, arguments: (samplers.append(run.__self__), start_thread(run, arguments)),
    )  # fmt: skip
    try:
        result = sample_loop(tmp_path)
    finally:
        sys.setswitchinterval(interval)
        for sampler in samplers:
            sampler.stopped = True
    assert result.pid == os.getpid()
    (line,) = {line for line in lines_asleep(result) if line.called == "time.sleep"}
    assert (line.file, line.function, line.app) == ("test_stacks.py", "work", True)
    assert Path(__file__).read_text().splitlines()[line.line - 1].endswith("# line: sleeps")
    assert "hidden" not in (tmp_path / f"stacks-{os.getpid()}.jsonl").read_text()


def test_only_one_worker_samples(tmp_path: Path) -> None:
    assert [stacks.claims_sampling(str(tmp_path)) for _ in range(3)] == [True, False, False]
    assert not stacks.claims_sampling(str(tmp_path / "missing"))


@contextmanager
def sampler_into(path: str | Path) -> Iterator[stacks.StackSampler]:
    """A sampler that writes its lines to this file."""
    files = stacks.Files(str(Path(__file__).parent), "")
    with open(path, "ab") as file:
        yield stacks.StackSampler(SimpleNamespace(), get_ident(), files, None, file.fileno())  # type: ignore[arg-type]


def test_a_full_disk_stops_the_sampler() -> None:
    with sampler_into("/dev/full") as sampler:
        assert sampler.locate(sys._getframe(), 1, 0) == (stacks.OTHER + 1, 0)
    assert sampler.stopped


def test_the_number_of_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MAX_LINES", 1)
    with sampler_into(tmp_path / "lines") as sampler:
        first = sampler.locate(sys._getframe(), 1, 0)[0]
        second = sampler.locate(sys._getframe(), 2, 0)[0]
    assert (first, second) == (stacks.OTHER + 1, stacks.OTHER)
    assert (tmp_path / "lines").read_text().count("\n") == 1
