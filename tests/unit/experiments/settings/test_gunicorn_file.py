"""Which line of a Gunicorn file sets what, and for which worker class."""

from __future__ import annotations

from pathlib import Path

import pytest

from workerlab.experiments.settings.gunicorn_file import FileLine, class_of, lines_of, strange
from workerlab.model import UsageError


def read(tmp_path: Path, text: str) -> tuple[FileLine, ...]:
    file = tmp_path / "gunicorn.conf.py"
    file.write_text(text)
    return lines_of(file)


def test_lines_of_names_and_hooks(tmp_path: Path) -> None:
    text = "workers = 4\n\ntimeout: int = 30\nkeepalive = backlog = 5\n\ndef on_exit(server): ...\n"
    assert read(tmp_path, text) == (
        FileLine(1, "workers", "4"),
        FileLine(3, "timeout", "30"),
        FileLine(4, "keepalive", "5"),
        FileLine(4, "backlog", "5"),
        FileLine(6, "on_exit", ""),
    )


def test_imported_and_augmented_names_are_set(tmp_path: Path) -> None:
    imports = "from base import (\n    workers,\n    pool as threads,\n)\n"
    text = f"{imports}workers *= 2\nworkers.x = 1\n"
    lines = read(tmp_path, text)
    assert [(line.number, line.name) for line in lines] == [(3, "threads"), (5, "workers")]
    assert lines[1].text == "workers *= 2"
    assert strange(lines, ()) == {}


def test_an_annotation_sets_nothing(tmp_path: Path) -> None:
    text = "threads: 4\nworkers: int\nworkers = 2\nworkers: 3\nraw_env = [\n    'A=1',\n]\n"
    assert read(tmp_path, text) == (
        FileLine(1, "threads", "4", sets=False),
        FileLine(3, "workers", "2"),
        FileLine(5, "raw_env", "[ 'A=1', ]"),
    )


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    (line,) = read(tmp_path, f"bind = {'1' * 60}\n")
    assert line.text == f"{'1' * 39}…"


SETTINGS = ("keepalive", "preload_app", "reload", "statsd_host", "statsd_prefix", "workers")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("keep_alive = 5\n", {"keep_alive": "keepalive"}),
        ("preload = True\n", {"preload": "preload_app"}),  # and not reload
        ("statsd = 'a:1'\n", {"statsd": ""}),  # two settings begin like this
        ("def on_startting(server): ...\n", {"on_startting": ""}),
        ("cores = 4\nworkers = cores * 2\n", {}),
        ("_port = 80\n", {}),
        ("import os\nfrom a import b\nworkers = 1\n", {}),
    ],
)
def test_unknown_names(tmp_path: Path, text: str, names: dict[str, str]) -> None:
    assert strange(read(tmp_path, text), SETTINGS) == names


def test_names_set_in_compound_statements_are_set(tmp_path: Path) -> None:
    text = """
if STAGE:
    workers = 8
else:
    workers = 1
try:
    timeout = 1
except KeyError:
    timeout = 2
finally:
    keepalive = 3
for threads, _ in ():
    umask = 7
"""
    assert read(tmp_path, text) == (
        FileLine(5, "workers", "1"),
        FileLine(9, "timeout", "2"),
        FileLine(11, "keepalive", "3"),
        FileLine(13, "umask", "7"),
    )


def test_names_within_functions_and_classes_are_no_settings(tmp_path: Path) -> None:
    text = "def post_fork(server, worker):\n    timeout = 3\nclass A:\n    workers = 1\n"
    assert [line.name for line in read(tmp_path, text)] == ["post_fork"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("workers = = 1\n", "line 1: invalid syntax"), ("a\0b", "source code")],
)
def test_a_file_that_is_no_python_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match="cannot be read as a Gunicorn file") as error:
        read(tmp_path, text)
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
        ({"worker_class": "shop.workers.Own"}, "shop.workers.Own"),
    ],
)
def test_the_worker_class_of_a_file(settings: dict[str, object], name: str) -> None:
    assert class_of(settings) == name
