"""Faults during a trial: finished cells are kept, the affected cell is invalid, and `--resume`
completes the run. The `lab` fixture checks that no process and no port remains.

Faults in processes of the server or in the harness are tested with a blocking, a green and an
asyncio class, since what remains depends on the class; other faults and resuming with one class.
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
ATTEMPTS = 3  # at catching a sweep during its second load


def sweep_in_second_load(lab: Lab, worker_class: str = "sync") -> subprocess.Popen[str]:
    """A sweep that has finished its first cell. Loads take seconds, also for busy machines; cells
    run one after the other (`test_jobs.py` tests them side by side)."""
    return lab.at_work(
        *("sweep", worker_class, "1,2", "--workers", "2", "--sleep", "2", "--rounds", "2"),
        *("--jobs", "1", "--tool", "fast"),
        when=lambda: lab.loads() == 2 and len(lab.records()) == 1,
        what="the load of the second cell",
    )


def assert_first_cell_valid(lab: Lab, *, interrupted: bool = False) -> None:
    """And the second one invalid, or unfinished if the harness was `interrupted`."""
    report = report_of(load_run(lab.run))
    invalid = [cell.verdict == "invalid" for cell in report.cells]
    assert invalid == ([False] if interrupted else [False, True])
    notes = [note for note in report.notes if isinstance(note, Unfinished)]
    assert [note.unfinished for note in notes] == ([1] if interrupted else [])


def assert_resumable(lab: Lab) -> None:
    """Resuming completes the run and keeps its first record."""
    first = lab.records()[0]
    cells = lab.sweep("--resume", str(lab.run))
    assert [cell["concurrency"] for cell in cells] == [1, 2]
    assert all(cell["throughput_rps"] for cell in cells)
    assert lab.records()[0] == first


@blocking_and_asyncio
def test_an_interrupt_stops_the_cell_and_prints_finished_cells(lab: Lab, worker_class: str) -> None:
    """`generators/test_limits.py` tests SIGTERM."""
    result = lab.end(sweep_in_second_load(lab, worker_class), signal.SIGINT)
    assert result.code == 130, result.err
    assert "--resume" in result.err
    assert worker_class in result.out
    assert_first_cell_valid(lab, interrupted=True)


def _guards(process: subprocess.Popen[str]) -> list[int]:
    return [guard.pid for guard in running("guard.py") if guard.parent == process.pid]


@once
def test_a_second_interrupt_ends_the_harness_at_once(lab: Lab) -> None:
    """The guards are stopped, so the harness cannot finish the cleanup after the first
    interrupt."""
    process, guards = _sweep_with_pids(lab, "sync", _guards)
    stop(guards)
    try:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)  # it waits for its guards
        give_up = time.monotonic() + GUARD_SLACK_S / 2
        while process.poll() is None:  # simultaneous signals may count as one
            assert time.monotonic() < give_up, "it waited for its guards"
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.returncode == 130
    finally:
        send_all(guards, signal.SIGCONT)
    process.communicate(timeout=LONG_S)
    until(lambda: not processes(str(lab.place)), "everything gone")
    assert_first_cell_valid(lab, interrupted=True)


@pytest.mark.classes("sync", "gevent", "uvicorn")
def test_no_process_survives_sigkill_of_the_harness(lab: Lab, worker_class: str) -> None:
    lab.end(sweep_in_second_load(lab, worker_class), signal.SIGKILL)
    until(lambda: not processes(str(lab.place)), "everything gone")
    assert_first_cell_valid(lab, interrupted=True)
    if worker_class == "sync":
        assert_resumable(lab)


@once
def test_a_crash_of_the_interpreter_prints_tracebacks(lab: Lab) -> None:
    result = lab.end(sweep_in_second_load(lab), signal.SIGSEGV)
    assert result.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in result.err
    assert "scheduler.py" in result.err
    assert "trial.py" in result.err
    until(lambda: not processes(str(lab.place)), "everything gone")


def _arbiter(lab: Lab) -> list[int]:
    workers = lab.workers()
    return [process.parent for process in running() if process.pid in workers]


def _sweep_with_pids(
    lab: Lab, worker_class: str, find_pids: Callable[[subprocess.Popen[str]], list[int]]
) -> tuple[subprocess.Popen[str], list[int]]:
    """A sweep in its second load and the pids of some of its processes. Repeated if the sweep ends
    before they are found."""
    for _ in range(ATTEMPTS):
        process = sweep_in_second_load(lab, worker_class)
        while not (pids := find_pids(process)) and process.poll() is None:
            time.sleep(0.02)
        if pids:
            return process, pids
        print("The sweep ended before its processes were found:", *process.communicate())
        shutil.rmtree(lab.place / "results")
    raise AssertionError(f"{ATTEMPTS} sweeps ended before their processes were found")


@blocking_and_asyncio
@pytest.mark.parametrize(
    "victim", [pytest.param("worker", marks=once), "arbiter", pytest.param("tool", marks=once)]
)
def test_a_killed_process_makes_its_cell_invalid(lab: Lab, worker_class: str, victim: str) -> None:
    pids: dict[str, Callable[[subprocess.Popen[str]], list[int]]] = {
        "tool": lambda _: _generators(lab),
        "arbiter": lambda _: _arbiter(lab),
        "worker": lambda _: lab.workers(),
    }
    process, (first, *_) = _sweep_with_pids(lab, worker_class, pids[victim])
    os.kill(first, signal.SIGKILL)
    result = lab.finish(process)
    assert result.code == 1, result.err
    assert "invalid after" in result.err
    assert_first_cell_valid(lab)


def _generators(lab: Lab) -> list[int]:
    """The generator, without the guard, whose command contains the generator's."""
    return [
        process.pid
        for process in running("harness/workerlab/load/generators")
        if process.directory.startswith(str(lab.place))
        and not any(word.endswith("guard.py") for word in process.words)
    ]


# By connections: garbage, no output, an error; else, and for its version, endless output
FAKE = """#!/bin/sh
case "$*" in
*"-c 1 "*) echo 'no benchmark at all \\001' ;;
*"-c 2 "*) ;;
*"-c 3 "*) echo 'apr_socket_recv: Connection reset by peer (104)' >&2; exit 104 ;;
*) exec yes 'Requests per second: 1000000 [#/sec] (mean)' ;;
esac
"""


@once
def test_cells_of_a_broken_load_tool_are_invalid(tmp_path: Path, lab: Lab) -> None:
    args = ("--workers", "1", "--sleep", "0.1", "--tool", "ab")
    with fake_program(tmp_path, "ab", FAKE) as fakes:
        lab.env["PATH"] = f"{fakes}{os.pathsep}{lab.env['PATH']}"
        cells = lab.sweep("sync", "1,2,3,4", *args, code=1)
    assert [cell["concurrency"] for cell in cells] == [1, 2, 3, 4]
    for cell in cells:
        assert cell["verdict"] == "invalid"
        assert cell["throughput_rps"] is None
        assert cell["tool_rps"] is None
        assert cell["reason"]
    size = sum(path.stat().st_size for path in lab.run.rglob("*") if path.is_file())
    assert size < 64 << 20


@once
def test_the_deadline_ends_a_hanging_tool(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a single trial with a short deadline."""
    args = ("--workers", "1", "--sleep", "0.1", "--rounds", "2", "--tool", "fast")
    lab.sweep("sync", "1", *args)
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
    """A file system of 3 MB at `place`."""
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
def test_a_run_on_a_full_disk_can_be_resumed(tmp_path: Path, lab: Lab) -> None:
    """The second cell does not fit until a file is removed."""
    small = tmp_path / "results"
    with small_disk(small), sweep_in_second_load(lab) as process:
        try:
            filler = small / "filler"
            with pytest.raises(OSError, match="No space left"):
                filler.write_bytes(bytes(4 << 20))
            result = lab.finish(process)
        finally:
            process.kill()
        assert result.code in (1, 3), result.err
        assert "Traceback" not in result.err
        filler.unlink()
        assert_first_cell_valid(lab)
        assert_resumable(lab)
