"""However a trial ends: nothing left behind, nothing finished lost, the touched cell invalid, and
`--resume` completes it. (That no process and no port stays is checked by the `lab` fixture.)

With a blocking, a green and an asyncio class, where it depends on the class what is left behind:
where a server's processes die, or the harness above them. The rest, and that such a run is resumed,
with one of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.processes import running, stop
from tests.builders.processes import send as send_all
from tests.integration.conftest import LONG_S, Lab, fake_program, processes, until
from workerlab.experiments import trial
from workerlab.experiments.load_trials import task_for
from workerlab.experiments.reading import report_of
from workerlab.model.evidence import Command
from workerlab.model.plan import Load
from workerlab.notes import Unfinished
from workerlab.plan import trials as trials_of
from workerlab.run_store import load as load_run
from workerlab.server.process import GUARD_SLACK_S

blocking_and_asyncio = pytest.mark.classes("sync", "uvicorn")
once = pytest.mark.once
# Seconds long, so that a busy machine meets it in the middle of the load, too; one cell after the
# other (side by side: `test_jobs.py`)
SLOW = ("--workers", "2", "--sleep", "2", "--rounds", "2", "--jobs", "1")
ATTEMPTS = 3  # to meet a sweep in the middle of its second load


def in_mid_cell(lab: Lab, worker_class: str) -> subprocess.Popen[str]:
    """A sweep that has finished its first cell and is in the load of its second."""
    return lab.at_work(
        *("sweep", worker_class, "1,2", *SLOW, "--tool", "fast"),
        when=lambda: lab.loads() == 2 and len(lab.records()) == 1,
        what="the load of the second cell",
    )


def left(lab: Lab, *, interrupted: bool = False) -> None:
    """A fault leaves a valid first cell, and a second one that is invalid, or unfinished if the
    harness was `interrupted`."""
    report = report_of(load_run(lab.run))
    invalid = [cell.verdict == "invalid" for cell in report.cells]
    assert invalid == ([False] if interrupted else [False, True])
    notes = [note for note in report.notes if isinstance(note, Unfinished)]
    assert [note.unfinished for note in notes] == ([1] if interrupted else [])


def resumed(lab: Lab) -> None:
    """It is whole and keeps what it had."""
    first = lab.records()[0]
    cells = lab.sweep("--resume", str(lab.run))
    assert [cell["concurrency"] for cell in cells] == [1, 2]
    assert all(cell["throughput_rps"] for cell in cells)
    assert lab.records()[0] == first


@blocking_and_asyncio
def test_first_signal_stops_the_cell_and_prints_what_is_finished(
    lab: Lab, worker_class: str
) -> None:
    """Here SIGINT; `test_limits.py` of the generators ends a load by SIGTERM."""
    result = lab.end(in_mid_cell(lab, worker_class), signal.SIGINT)
    assert result.code == 130, result.err
    assert "--resume" in result.err
    assert worker_class in result.out
    left(lab, interrupted=True)


def _guards(process: subprocess.Popen[str]) -> list[int]:
    """The guards that this harness has started."""
    return [guard.pid for guard in running("guard.py") if guard.parent == process.pid]


@once
def test_second_interrupt_ends_at_once(lab: Lab, worker_class: str) -> None:
    """The guards are stopped, so that what the first interrupt cleans up cannot be finished: only
    a second one lets the harness end before they go on."""
    process, guards = _victims(lab, worker_class, _guards)
    stop(guards)
    try:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)  # it waits for its guards
        give_up = time.monotonic() + GUARD_SLACK_S / 2
        while process.poll() is None:  # two that come at once are one
            assert time.monotonic() < give_up, "it waited for its guards"
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.returncode == 130
    finally:
        send_all(guards, signal.SIGCONT)
    process.communicate(timeout=LONG_S)
    until(lambda: not processes(str(lab.place)), "everything gone")
    left(lab, interrupted=True)


@pytest.mark.classes("sync", "gevent", "uvicorn")
def test_sigkill_of_the_harness(lab: Lab, worker_class: str) -> None:
    lab.end(in_mid_cell(lab, worker_class), signal.SIGKILL)
    until(lambda: not processes(str(lab.place)), "everything gone")
    left(lab, interrupted=True)
    if worker_class == "sync":
        resumed(lab)


@once
def test_a_crash_of_the_interpreter_says_where(lab: Lab, worker_class: str) -> None:
    result = lab.end(in_mid_cell(lab, worker_class), signal.SIGSEGV)
    assert result.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in result.err
    assert "scheduler.py" in result.err  # the lines it stood at
    assert "trial.py" in result.err
    until(lambda: not processes(str(lab.place)), "everything gone")


def _arbiter(lab: Lab) -> list[int]:
    workers = lab.workers()
    return [process.parent for process in running() if process.pid in workers]


def _victims(
    lab: Lab, worker_class: str, pids: Callable[[subprocess.Popen[str]], list[int]]
) -> tuple[subprocess.Popen[str], list[int]]:
    """A sweep in the load of its second cell, and who is killed; once more where that was over
    before anybody was seen."""
    for _ in range(ATTEMPTS):
        process = in_mid_cell(lab, worker_class)
        pids_before = pids(process)
        while not pids_before and process.poll() is None:
            time.sleep(0.02)
            pids_before = pids(process)
        if pids_before:
            return process, pids_before
        print("again: the sweep ended before its victim was seen:", *process.communicate())
        shutil.rmtree(lab.place / "results")
    raise AssertionError(f"{ATTEMPTS} sweeps ended before their victims were seen")


@blocking_and_asyncio
@pytest.mark.parametrize(
    "victim", [pytest.param("worker", marks=once), "arbiter", pytest.param("tool", marks=once)]
)
def test_sigkill_below_the_harness(lab: Lab, worker_class: str, victim: str) -> None:
    pids: dict[str, Callable[[subprocess.Popen[str]], list[int]]] = {
        "tool": lambda _: _generators(lab),
        "arbiter": lambda _: _arbiter(lab),
        "worker": lambda _: lab.workers(),
    }
    process, (first, *_) = _victims(lab, worker_class, pids[victim])
    os.kill(first, signal.SIGKILL)
    result = lab.finish(process)
    assert result.code == 1, result.err
    assert "invalid after" in result.err
    left(lab)


def _generators(lab: Lab) -> list[int]:
    """The generator itself, not the guard that has its args among its own."""
    return [
        process.pid
        for process in running("harness/workerlab/load/generators")
        if process.directory.startswith(str(lab.place))
        and not any(word.endswith("guard.py") for word in process.words)
    ]


# By connections: garbage, silence, a complaint; else, and asked for its version, a gigabyte
FAKE = """#!/bin/sh
case "$*" in
*"-c 1 "*) echo 'no benchmark at all \\001' ;;
*"-c 2 "*) ;;
*"-c 3 "*) echo 'apr_socket_recv: Connection reset by peer (104)' >&2; exit 104 ;;
*) exec yes 'Requests per second: 1000000 [#/sec] (mean)' ;;
esac
"""


@once
def test_a_load_tool_that_is_none(tmp_path: Path, worker_class: str, lab: Lab) -> None:
    with fake_program(tmp_path, "ab", FAKE) as path:
        faked = Lab(tmp_path, path)
        args = ("--workers", "1", "--sleep", "0.1", "--tool", "ab")
        cells = faked.sweep(worker_class, "1,2,3,4", *args, code=1)
    assert [cell["concurrency"] for cell in cells] == [1, 2, 3, 4]
    for cell in cells:
        assert cell["verdict"] == "invalid"
        assert cell["throughput_rps"] is None
        assert cell["tool_rps"] is None
        assert cell["reason"]
    kept = sum(path.stat().st_size for path in faked.run.rglob("*") if path.is_file())
    assert kept < 64 << 20


@once
def test_a_load_tool_that_hangs(
    tmp_path: Path, worker_class: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline ends it. Checked on the trial itself, with a deadline of its own."""
    args = ("--workers", "1", "--sleep", "0.1", "--rounds", "2", "--tool", "fast")
    lab.sweep(worker_class, "1", *args)
    plan = load_run(lab.run).plan
    (planned,) = trials_of(plan)
    monkeypatch.setattr(trial, "TOOL_SLACK_S", 0.1)
    task = task_for(plan, planned, lab.run)
    trial.discard_attempt(task.directory)
    hanging = replace(
        task,
        next_load=lambda *_: Load(concurrency=1, requests=3, duration_s=1, deadline_s=0.3),
        command=lambda *_: Command(("sleep", "1000")),
    )
    record = trial.run(hanging)
    assert record.fault.kind == "tool"
    assert "deadline" in record.fault.reason


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of 3 MB at `place`, gone afterwards whatever has happened in it."""
    place.mkdir()
    args = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if subprocess.run(args, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        try:
            until(lambda: not processes(str(place)), "everything gone")
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


@once
def test_full_disk(tmp_path: Path, worker_class: str, lab: Lab) -> None:
    """The first cell fits, the second does not; room is made and the run resumed."""
    small = tmp_path / "results"
    with small_disk(small), in_mid_cell(lab, worker_class) as process:
        try:
            filler = small / "filler"
            _fill(filler)
            result = lab.finish(process)
        finally:
            process.kill()
        assert result.code in (1, 3), result.err
        assert "Traceback" not in result.err
        filler.unlink()
        left(lab)
        resumed(lab)


def _fill(path: Path) -> None:
    """Write until nothing fits any more."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left"):
            _write_for_ever(handle)
    finally:
        os.close(handle)


def _write_for_ever(handle: int) -> None:
    while True:
        os.write(handle, bytes(1 << 12))
