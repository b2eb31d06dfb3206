"""The lines of a Gunicorn file that set something, and the worker class of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from workerlab.errors import UsageError
from workerlab.experiments.settings import gunicorn_file
from workerlab.server.inside.introspect import execute_file

SETTINGS = (
    "backlog", "graceful_timeout", "keepalive", "on_exit", "post_fork", "preload_app", "raw_env",
    "reload", "statsd_host", "statsd_prefix", "threads", "timeout", "umask", "workers",
)  # fmt: skip


def read(directory: Path, text: str) -> tuple[gunicorn_file.FileLine, ...]:
    path = directory / "gunicorn.conf.py"
    path.write_text(text)
    assignments = execute_file(str(path))[1].of(SETTINGS)
    return gunicorn_file.SourceFile(path).lines(assignments, SETTINGS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("timeout: int = 30", (1, "timeout", "30", "")),
        ("def on_exit(server): ...", (1, "on_exit", "", "")),
        ("umask = 0o22", (1, "umask", "0o22", "")),
        ("raw_env = ['A=' + 'secret']", (1, "raw_env", "['A=...']", "raw_env = ['A=' + 'secret']")),
        ("_twice = 2\nworkers = _twice * 2", (2, "workers", "4", "workers = _twice * 2")),
        ("workers = 2\nworkers += 1", (2, "workers", "3", "workers += 1")),
        ("globals()['timeout'] = 7", (1, "timeout", "7", "globals()['timeout'] = 7")),
        ("for threads in (2, 4): ...", (1, "threads", "4", "for threads in (2, 4): ...")),
        ("def _f():\n global timeout\n timeout = 3\n_f()", (4, "timeout", "3", "_f()")),
        ("if 0: workers = 8\nelse: workers = 1", (2, "workers", "1", "")),
        ("try: 1 / 0\nexcept ArithmeticError:\n timeout = 2", (3, "timeout", "2", "")),
        ("with open('/dev/null') as _:\n keepalive = 3", (2, "keepalive", "3", "")),
        ("'text'\nfrom __future__ import annotations\nthreads = 2", (3, "threads", "2", "")),
        ("raw_env = [\n    'A=1',\n]", (1, "raw_env", "['A=...']", "")),
        ("umask = [workers for workers in (7,)][0]",
         (1, "umask", "7", "umask = [workers for workers in (7,)][0]")),
        (f"keepalive = {'1' * 60}", (1, "keepalive", "1" * 60, "")),
    ],
)  # fmt: skip
def test_the_executed_file_gives_the_value_of_a_setting(
    tmp_path: Path, text: str, line: tuple[int, str, str, str]
) -> None:
    (setting,) = (line for line in read(tmp_path, text) if line.is_setting)
    assert (setting.number, setting.name, setting.text, setting.source) == line
    assert not setting.overridden


def test_each_setting_of_a_line_has_its_value(tmp_path: Path) -> None:
    lines = read(tmp_path, "workers, threads = 2, 4\nkeepalive = backlog = 5\n")
    assert {line.name: (line.number, line.text) for line in lines} == {
        "workers": (1, "2"), "threads": (1, "4"), "keepalive": (2, "5"), "backlog": (2, "5"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "overridden", "by"),
    [
        ("timeout = 30\ntimeout = 30\n", (1,), 2),
        ("timeout = 30\nglobals().update(timeout=7)\n", (1,), 2),
        ("timeout = 1\ntimeout = 2\ntimeout += 3\n", (1,), 2),
        ("timeout = 1\ntimeout = timeout + 2\n", (), 1),
        ("timeout = 1\nif 0:\n    timeout = 2\n", (), 1),
        ("for timeout in (1, 2): ...\ntimeout = 3\n", (1,), 2),
    ],
)
def test_a_later_line_overrides_an_assignment(
    tmp_path: Path, text: str, overridden: tuple[int, ...], by: int
) -> None:
    (line,) = read(tmp_path, text)
    assert (line.overridden, line.by) == (overridden, by)


def test_imported_names_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf_base.py").write_text("workers = 2\nother = 1\nbacklog = 64\n")
    monkeypatch.syspath_prepend(tmp_path)
    lines = read(tmp_path, "from conf_base import (\n    backlog as threads,\n)\n")
    assert [(line.number, line.name, line.text) for line in lines] == [(2, "threads", "64")]
    lines = read(tmp_path, "from conf_base import *\n")
    assert [line.name for line in lines if line.is_setting] == ["workers", "backlog"]
    assert gunicorn_file.unknown_names(lines, SETTINGS) == {}


def test_an_annotation_sets_nothing(tmp_path: Path) -> None:
    text = "threads: 4\nworkers: int\nworkers = 2\nworkers: 3\nif 1:\n    timeout: 'x'\n"
    lines = read(tmp_path, text)
    assert [(line.number, line.name, line.text, line.sets, line.annotated) for line in lines] == [
        (1, "threads", "4", False, (1, "4")),
        (3, "workers", "2", True, (4, "3")),
        (6, "timeout", "'x'", False, (6, "'x'")),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("keep_alive = 5\n", {"keep_alive": "keepalive"}),
        ("preload = True\n", {"preload": "preload_app"}),  # not reload
        ("statsd = 'a:1'\n", {"statsd": ""}),  # two settings begin like this
        ("def on_startting(server): ...\n", {"on_startting": ""}),
        ("cores = 4\nworkers = cores * 2\n", {}),
        ("_port = 80\n", {}),
        ("import os\nfrom json import dumps\nworkers = 1\n", {}),
    ],
)
def test_a_name_that_is_no_setting_is_unknown(
    tmp_path: Path, text: str, names: dict[str, str]
) -> None:
    assert gunicorn_file.unknown_names(read(tmp_path, text), SETTINGS) == names


def test_names_within_functions_and_classes_are_no_settings(tmp_path: Path) -> None:
    text = "def post_fork(server, worker):\n    timeout = 3\nclass A:\n    workers = 1\n"
    lines = read(tmp_path, text)
    assert [line.name for line in lines if line.is_setting] == ["post_fork"]
    assert gunicorn_file.unknown_names(lines, SETTINGS) == {}


@pytest.mark.parametrize(
    ("text", "why"), [("workers = = 1\n", "line 1: invalid syntax"), ("a\0b", "source code")]
)
def test_a_file_that_is_not_python_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot be read as a Gunicorn file") as error:
        gunicorn_file.SourceFile(path)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "sync"),
        ({"threads": 1}, "sync"),
        ({"threads": 4}, "gthread"),
        ({"worker_class": "sync", "threads": 4}, "gthread"),
        ({"worker_class": "gevent", "threads": 4}, "gevent"),
        ({"worker_class": "gunicorn.workers.ggevent.GeventWorker"}, "gevent"),
        ({"worker_class": "uvicorn.workers.UvicornWorker"}, "uvicorn"),
        ({"worker_class": "uvicorn_worker.UvicornWorker"}, "uvicorn"),
        ({"worker_class": "egg:gunicorn#gevent"}, "gevent"),
        ({"worker_class": "shop.workers.Own"}, "shop.workers.Own"),
    ],
)
def test_the_settings_select_the_worker_class(settings: dict[str, object], name: str) -> None:
    assert gunicorn_file.class_of(settings) == name


@pytest.mark.parametrize(
    ("name", "advice"), [("gevnt", "did you mean gevent?"), ("x", "choose from sync, gevent")]
)
def test_an_unknown_worker_class_is_refused(name: str, advice: str) -> None:
    with pytest.raises(UsageError) as error:
        gunicorn_file.check_class(name, ("sync", "gevent"), "a.py, line 2")
    assert str(error.value) == f'a.py, line 2: worker_class "{name}" is unknown; {advice}'
    for valid in ("gevent", "shop.workers.Own"):
        gunicorn_file.check_class(valid, ("sync", "gevent"), "a.py")
