"""`workerlab settings` on real servers: which settings each class honours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import LONG_S, Lab, processes
from workerlab.server.preflight import interpreter
from workerlab.server.worker_classes import class_named

# Settings that launches of a few seconds can test
NAMES = (
    "backlog", "workers", "threads", "worker_connections", "max_requests_jitter", "preload_app",
    "chdir", "umask", "worker_tmp_dir", "raw_env", "limit_request_line", "limit_request_fields",
    "limit_request_field_size", "header_map", "forwarded_allow_ips", "secure_scheme_headers",
    "accesslog", "access_log_format", "statsd_host", "pre_request", "post_request", "worker_int",
    "worker_abort", "worker_exit", "child_exit", "on_exit",
)  # fmt: skip


def only_answer(report: dict[str, Any], code: str) -> dict[str, Any]:
    (answer,) = (finding["answer"] for finding in report["findings"])
    assert answer["code"] == code
    values: dict[str, Any] = answer["values"]
    return values


def test_a_class_ignores_the_settings_in_its_row(lab: Lab, worker_class: str) -> None:
    report = lab.report("settings", worker_class, "--only", ",".join(NAMES))
    answer = only_answer(report, "ClassHonours")
    # With several threads sync becomes gthread
    honoured = {"threads"} if worker_class == "sync" else set()
    ignores = set(class_named(worker_class).ignores) - honoured
    assert set(answer["ignored"]) == ignores & set(NAMES)
    assert answer["settings"] == len(NAMES)
    if worker_class != "asgi":  # which always listens with a backlog of 100
        assert "backlog" in answer["clamped"]
    changes = {"sync": {"threads"}, "gthread": {"worker_connections"}, "gevent": {"preload_app"},
               "tornado": {"statsd_host"}, "uvicorn": {"statsd_host"}}  # fmt: skip
    assert set(answer["changes"]) == changes.get(worker_class, set())
    assert not processes(str(lab.place))


@pytest.mark.once
def test_settings_are_examined_under_several_interpreters(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "python-of-another"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    pythons = ("--python", f"{sys.executable},{other}", "--gunicorn", "25.3.0")
    args = ("settings", "sync", "--only", "chdir,threads", *pythons)
    report = lab.report(*args, downloads=True)
    for log in lab.run.glob("raw/*/server.log"):
        assert "No module named" not in log.read_text()
    answers = [entry["answer"]["values"] for entry in report["findings"]]
    versions = [entry["version"] for entry in answers]
    assert [entry.partition(", ")[2] for entry in versions] == [sys.executable, str(other)]
    assert all(re.match(r"\d+\.\d+\.\d+, /", entry) for entry in versions)
    assert [(entry["honoured"], entry["changes"]) for entry in answers] == [(1, ["threads"])] * 2
    assert not processes(str(lab.place))


@pytest.mark.once
def test_a_file_is_read_line_by_line(lab: Lab) -> None:
    """Findings name only settings in the file that are not honoured."""
    (lab.place / "gunicorn.conf.py").write_text(
        'bind = "0.0.0.0:8000"\nworkers = 3\nworker_connections = 100\nchdir = "/srv"\n'
        'worker_class = "gunicorn.workers.sync.SyncWorker"\nthreads = 1\nbacklog = 64\n'
    )
    report = lab.report("settings", "--config", "gunicorn.conf.py")
    marked = only_answer(report, "LineMarked")
    assert (marked["line"], marked["setting"]) == (3, "worker_connections")
    rows = report["tables"][0]["rows"]
    assert [(row["line"], row["setting"]) for row in rows] == [
        (1, "bind"), (2, "workers"), (3, "worker_connections"), (4, "chdir"), (5, "worker_class"),
        (6, "threads"), (7, "backlog"),
    ]  # fmt: skip
    result = lab("report", "results", "--format", "markdown")
    assert result.code == 0, result.err
    assert result.out.count("| honoured |") == 4  # workers, chdir, threads and backlog, as they are


@pytest.mark.once
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('no such stage')\n", "RuntimeError: no such stage"),
        ('workers = "three"\n', "Gunicorn rejects workers = 'three'"),
        ('bind = "127.0.0.1:x"\n', "Gunicorn rejects bind = '127.0.0.1:x': 'x' is not"),
        ("raw_env = ['A=1', 'B']\n", "rejects raw_env = ['A=...', 'B=...']: environment"),
        ("silent = 1\n", "line 1: silent is not a Gunicorn setting"),
        ('loglevel = "info"\n', "sets nothing that can be examined"),
        ("threads: 4\n", "line 1: threads: 4 sets nothing, since it is an annotation: write"),
    ],
)
def test_a_file_that_cannot_be_examined_is_refused(lab: Lab, text: str, message: str) -> None:
    (lab.place / "bad.py").write_text(text)
    assert message in lab.refusal("settings", "--config", "bad.py")


ABSENT_PATHS = {
    **dict.fromkeys(("worker_tmp_dir", "chdir", "certfile", "logconfig"), "/nonexistent"),
    **dict.fromkeys(("accesslog", "errorlog", "pidfile"), "/nonexistent/a"),
    **dict.fromkeys(("user", "group"), "nonexistent"),
}


@pytest.mark.once
def test_gunicorn_does_not_start_without_the_paths_reported_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "gunicorn.conf.py"
    lines = [f"{name} = {value!r}\n" for name, value in ABSENT_PATHS.items()]
    app = "workerlab.server.inside.inspected:wsgi"
    command = [sys.executable, "-m", "gunicorn", "-c", str(path), app]
    absent = {name: value.removesuffix("/a") for name, value in ABSENT_PATHS.items()}
    for name, line in zip(ABSENT_PATHS, lines, strict=True):
        path.write_text(f'bind = "127.0.0.1:0"\ncontrol_socket_disable = True\n{line}')
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=LONG_S)
        assert result.returncode != 0, line
        assert absent[name].encode() in result.stdout + result.stderr
    path.write_text("".join(lines))
    assert interpreter(sys.executable, tmp_path, str(path)).absent == absent
    path.write_text('worker_tmp_dir = "."\npidfile = "a"\naccesslog = "-"\nlogconfig = ""\n')
    assert interpreter(sys.executable, tmp_path, str(path)).absent == {}


@pytest.mark.once
def test_a_run_interrupted_in_its_first_launch_has_no_results(lab: Lab) -> None:
    process = lab.at_work(
        *("settings", "sync"),
        when=lambda: list(lab.place.glob("results/*/raw/*")),
        what="its first launch begins",
    )
    result = lab.end(process, signal.SIGINT)
    assert result.code == 130, result.err
    if not list(lab.run.glob("raw/*/seen.json")):  # on a busy machine, a launch may have ended
        assert "Nothing was examined yet" in result.out.splitlines()
        assert len(result.out.splitlines()) < 10
    assert (result.out + result.err).count("settings --resume") == 1
    assert not processes(str(lab.place))


@pytest.mark.once
def test_a_resumed_run_examines_only_unfinished_settings(lab: Lab) -> None:
    def finished() -> list[str]:
        if not list(lab.place.glob("results/*/trials.jsonl")):
            return []
        return [record["key"] for record in lab.records()]

    # The first launch of four to end: two others wait seconds for Gunicorn's timeout
    process = lab.at_work(
        *("settings", "sync", "--only", "chdir,keepalive,timeout"),
        when=lambda: "sync-sockets-1" in finished(),
        what="one launch ended",
    )
    result = lab.end(process, signal.SIGINT)
    assert result.code == 130, result.err
    examined = {path.parent.name for path in lab.run.glob("raw/*/seen.json")}
    assert examined <= set(finished()), "a finished launch was not recorded"
    assert not processes(str(lab.place))
    answer = only_answer(lab.report("settings", "--resume", str(lab.run)), "ClassHonours")
    assert answer["settings"] == answer["honoured"] + len(answer["ignored"]) == 3
    assert finished().count("sync-sockets-1") == 1, "a finished launch was repeated"
