"""What each class does with its settings, by experiments on real servers."""

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

# What launches of a few seconds prove
NAMES = (
    "backlog", "workers", "threads", "worker_connections", "max_requests_jitter", "preload_app",
    "chdir", "umask", "worker_tmp_dir", "raw_env", "limit_request_line", "limit_request_fields",
    "limit_request_field_size", "header_map", "forwarded_allow_ips", "secure_scheme_headers",
    "accesslog", "access_log_format", "statsd_host", "pre_request", "post_request", "worker_int",
    "worker_abort", "worker_exit", "child_exit", "on_exit",
)  # fmt: skip


def words_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the only class: settings by their word."""
    (answer,) = (finding["answer"] for finding in report["findings"])
    assert answer["code"] == "ClassHonours"
    values: dict[str, dict[str, Any]] = answer["values"]
    return values


def test_what_a_class_ignores_is_what_its_row_says(lab: Lab, worker_class: str) -> None:
    args = words_of(lab.report("settings", worker_class, "--only", ",".join(NAMES)))
    # With several threads sync is another class
    ignores = set(class_named(worker_class).ignores) - (
        {"threads"} if worker_class == "sync" else set()
    )
    assert set(args["ignored"]) == ignores & set(NAMES)
    assert args["settings"] == len(NAMES)
    if worker_class != "asgi":  # it listens with 100, whatever it is told
        assert "backlog" in args["clamped"]
    changes = {"sync": {"threads"}, "gthread": {"worker_connections"}, "gevent": {"preload_app"},
               "tornado": {"statsd_host"}, "uvicorn": {"statsd_host"}}  # fmt: skip
    assert set(args["changes"]) == changes.get(worker_class, set())
    assert not processes(str(lab.place))


@pytest.mark.once
def test_under_two_interpreters(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "python-of-another"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    pythons = ("--python", f"{sys.executable},{other}", "--gunicorn", "25.3.0")
    report = lab.report_or_skip("settings", "sync", "--only", "chdir,threads", *pythons)
    for proof in lab.run.glob("raw/*/server.log"):
        assert "No module named" not in proof.read_text()
    answers = [entry["answer"]["values"] for entry in report["findings"]]
    versions = [entry["version"] for entry in answers]
    assert [entry.partition(", ")[2] for entry in versions] == [sys.executable, str(other)]
    assert all(re.match(r"\d+\.\d+\.\d+, /", entry) for entry in versions)
    assert [(entry["honoured"], entry["changes"]) for entry in answers] == [(1, ["threads"])] * 2
    assert not processes(str(lab.place))


@pytest.mark.once
def test_a_file_is_read_line_by_line(lab: Lab) -> None:
    """What is honoured is not named, and neither is what the file does not set."""
    (lab.place / "gunicorn.conf.py").write_text(
        'bind = "0.0.0.0:8000"\nworkers = 3\nworker_connections = 100\nchdir = "/srv"\n'
        'worker_class = "gunicorn.workers.sync.SyncWorker"\nthreads = 1\nbacklog = 64\n'
    )
    report = lab.report("settings", "--config", "gunicorn.conf.py")
    (finding,) = (finding["answer"] for finding in report["findings"])
    assert finding["code"] == "LineMarked"
    assert (finding["values"]["line"], finding["values"]["setting"]) == (3, "worker_connections")
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
    ("text", "says"),
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
def test_a_file_that_cannot_be_examined_is_one_sentence(lab: Lab, text: str, says: str) -> None:
    (lab.place / "bad.py").write_text(text)
    assert says in lab.refusal("settings", "--config", "bad.py")


NEEDED = {
    **dict.fromkeys(("worker_tmp_dir", "chdir", "certfile", "logconfig"), "/nonexistent"),
    **dict.fromkeys(("accesslog", "errorlog", "pidfile"), "/nonexistent/a"),
    **dict.fromkeys(("user", "group"), "nonexistent"),
}


@pytest.mark.once
def test_gunicorn_does_not_start_without_the_paths_that_are_called_needed(tmp_path: Path) -> None:
    path = tmp_path / "gunicorn.conf.py"
    lines = [f"{name} = {value!r}\n" for name, value in NEEDED.items()]
    app = "workerlab.server.inside.inspected:wsgi"
    command = [sys.executable, "-m", "gunicorn", "-c", str(path), app]
    absent = {name: value.removesuffix("/a") for name, value in NEEDED.items()}
    for name, line in zip(NEEDED, lines, strict=True):
        path.write_text(f'bind = "127.0.0.1:0"\ncontrol_socket_disable = True\n{line}')
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=LONG_S)
        assert result.returncode != 0, line
        assert absent[name].encode() in result.stdout + result.stderr
    path.write_text("".join(lines))
    assert interpreter(sys.executable, tmp_path, str(path)).absent == absent
    path.write_text('worker_tmp_dir = "."\npidfile = "a"\naccesslog = "-"\nlogconfig = ""\n')
    assert interpreter(sys.executable, tmp_path, str(path)).absent == {}


@pytest.mark.once
def test_a_run_that_is_interrupted_at_once_examined_nothing(lab: Lab) -> None:
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
def test_an_interrupted_run_leaves_nothing_and_is_finished(lab: Lab) -> None:
    def ended() -> list[str]:
        if not list(lab.place.glob("results/*/trials.jsonl")):
            return []
        return [record["key"] for record in lab.records()]

    # The first of four to end: two others wait for Gunicorn's timeout, for seconds
    process = lab.at_work(
        *("settings", "sync", "--only", "chdir,keepalive,timeout"),
        when=lambda: "sync-sockets-1" in ended(),
        what="one launch ended",
    )
    result = lab.end(process, signal.SIGINT)
    assert result.code == 130, result.err
    examined = {path.parent.name for path in lab.run.glob("raw/*/seen.json")}
    assert examined <= set(ended()), "it waited for what is never asked again"
    assert not processes(str(lab.place))
    args = words_of(lab.report("settings", "--resume", str(lab.run)))
    assert args["settings"] == args["honoured"] + len(args["ignored"]) == 3
    assert ended().count("sync-sockets-1") == 1, "what had ended was made again"
