"""What each class does with its settings, by recorded launches of seven classes under four versions
of Gunicorn; and which lines of ten Gunicorn files do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from gunicorn.config import make_settings
from msgspec.structs import replace

from tests.builders.runs import recorded
from workerlab import codec, run_store
from workerlab.experiments.settings.command import SettingsRequest
from workerlab.experiments.settings.document import (
    EXAMINED_SCOPE,
    ClassExamined,
    LineMarked,
    NothingIgnored,
    UnknownName,
    document,
    examined_classes,
)
from workerlab.experiments.settings.effect_types import Effect
from workerlab.experiments.settings.effects import SETTINGS, effects
from workerlab.experiments.settings.gunicorn_file import class_of, lines_of, strange
from workerlab.finding import Finding
from workerlab.model import Document
from workerlab.report.text import render
from workerlab.report.values import text
from workerlab.server.inside.introspect import names_of, settings_of
from workerlab.server.worker_classes import CLASSES, class_named

FILES = Path(__file__).resolve().parents[3] / "data" / "gunicorn_files"
VERSIONS = ("23.0.0", "25.3.0", "26.2.0", "27.0.1")
USUAL = "25.3.0"
MISSING = {("asgi", "23.0.0"), ("eventlet", "26.2.0"), ("eventlet", "27.0.1")}
# Beside what a class ignores, which stands in its row
CHANGES = {
    "sync": {"threads", "sendfile"},
    "gthread": {"worker_connections", "timeout", "sendfile"},
    "gevent": {"preload_app"},
    "tornado": {"statsd_host"},
    "asgi": {"graceful_timeout"},
    "uvicorn": {"statsd_host"},
}


@cache
def every() -> Mapping[tuple[str, str], ClassExamined]:
    found = examined_classes(run_store.load(recorded("settings")))
    return {(one.worker_class, one.version): one for one in found}


def effect(name: str, worker_class: str, version: str = USUAL) -> Effect:
    return every()[worker_class, version].effects[name]


def with_word(word: str, worker_class: str, version: str = USUAL) -> set[str]:
    found = every()[worker_class, version].effects
    return {name for name, one in found.items() if one.word == word}


def test_each_class_was_examined_where_it_exists() -> None:
    assert set(every()) == {(one, its) for one in CLASSES for its in VERSIONS} - MISSING
    assert not any(one.missing for one in every().values())


@pytest.mark.parametrize("worker_class", CLASSES)
def test_what_a_class_ignores(worker_class: str) -> None:
    # With several threads sync is another class
    ignores = {*class_named(worker_class).ignores} - {"threads" if worker_class == "sync" else ""}
    assert with_word("ignored", worker_class) == ignores
    assert with_word("changes", worker_class) == CHANGES.get(worker_class, set())
    assert with_word("clamped", worker_class) == ({"backlog"} - {*ignores})


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_what_later_versions_heed(version: str) -> None:
    row = class_named("asgi")
    heeded = {name for name, since in row.heeds_from.items() if version >= since}
    assert with_word("ignored", "asgi", version) == {*row.ignores} - heeded


def test_what_differs_between_versions() -> None:
    codes = {
        (name, worker_class): tuple(
            effect(name, worker_class, version).code
            for version in VERSIONS
            if (worker_class, version) not in MISSING
        )
        for name in ("reuse_port", "graceful_timeout", "lingering", "silent", "preload_app")
        for worker_class in ("sync", "gthread", "asgi", "eventlet")
    }
    assert codes["reuse_port", "sync"] == ("reuse_port.one", *["reuse_port"] * 3)
    assert codes["graceful_timeout", "asgi"] == ("graceful.idle", "graceful", "graceful")
    free, held = "lingering.free", "lingering.held"
    assert codes["lingering", "sync"] == codes["lingering", "gthread"] == (free, free, held, held)
    assert codes["silent", "gthread"] == ("silent.open", *["silent.closed"] * 3)
    assert codes["preload_app", "eventlet"] == ("preload.blocks", "preload")
    for version in VERSIONS[2:]:
        assert effect("lingering", "sync", version).values["held_s"] == pytest.approx(2.0, abs=0.5)


def test_what_happens_to_those_who_are_there() -> None:
    wedged = {key for key, one in every().items() if one.effects["crowd"].code == "crowd.wedged"}
    assert wedged == {("gthread", "23.0.0")}
    codes = {name: effect("under_way", name).code for name in CLASSES}
    cut = {name for name, code in codes.items() if code == "under_way.cut"}
    assert cut == {"gevent", "eventlet", "asgi"}
    assert set(codes.values()) == {"under_way.cut", "under_way.passed"}
    changed = {name for name in CLASSES if effect("reload", name).code == "reload.changed"}
    assert changed == {"uvicorn"}


def test_how_exactly() -> None:
    assert effect("max_requests", "sync").code == "max_requests"
    assert effect("max_requests", "gevent").code == "max_requests.overrun"
    assert effect("timeout", "sync").code == effect("timeout", "tornado").code == "timeout.both"
    assert effect("timeout", "gevent").code == "timeout.blocked"
    # gthread looks once a second
    assert 2.9 < effect("keepalive", "gthread").values["closed_s"] < 4.5
    assert effect("keepalive", "gevent").values["closed_s"] == pytest.approx(3.0, abs=0.5)
    assert effect("forwarded_allow_ips", "sync").code == "forwarded.scheme"
    assert effect("forwarded_allow_ips", "uvicorn").code == "forwarded.both"
    assert effect("worker_connections", "gthread").code == "worker_connections.accepts.ends"


def test_a_launch_that_is_missing_proves_nothing() -> None:
    assert effects({}) == {}
    found = every()["sync", USUAL]
    assert set(found.effects) == set(SETTINGS)


def test_each_effect_has_a_sentence() -> None:
    for one in every().values():
        for found in one.effects.values():
            assert found.observation
            assert "None" not in found.observation


# --- ten files ------------------------------------------------------------------------------------

IGNORED = {
    "01_small_site": {"keepalive"},
    "02_cores": set[str](),
    "03_container": set[str](),
    "04_greenlets": {"threads", "sendfile"},
    "05_fastapi": {
        *("threads", "worker_connections", "limit_request_line", "limit_request_field_size"),
        *("access_log_format", "pre_request", "worker_exit"),
    },
    "06_asgi": {
        *("backlog", "worker_connections", "keepalive", "header_map", "proxy_protocol"),
        "forwarded_allow_ips",
    },
    "07_tornado": {
        *("worker_connections", "keepalive", "accesslog", "access_log_format"),
        *("limit_request_line", "post_request"),
    },
    "08_metrics": {"worker_connections"},
    "09_settings_by_stage": {"keepalive"},
    "10_green_threads": {"threads", "sendfile"},
}


# Told of, too: they change something else than they seem to
OTHERS = {
    "02_cores": {"worker_connections"},
    "06_asgi": {"graceful_timeout"},
    "07_tornado": {"statsd_host"},
    "09_settings_by_stage": {"sendfile"},
}


def test_all_files_are_known() -> None:
    assert {path.stem for path in FILES.glob("*.py")} == set(IGNORED)


def report_on(path: Path, left_out: tuple[str, ...] = ()) -> tuple[str, Document]:
    """The worker class of a file, and what is told of it. `left_out`: by --quick."""
    worker_class, lines = class_of(settings_of(names_of(str(path)))), lines_of(path)
    named = {line.name for line in lines if line.sets}.difference(left_out)
    settings = tuple(one for one in SETTINGS if one in named)
    values = {
        name: value for name, value in settings_of(names_of(str(path))).items() if name in settings
    }
    run = run_store.load(recorded("settings"))
    its = make_settings()
    more = {"strange": strange(lines, its)}
    more["unset"] = tuple(one.name for one in lines if not one.sets and one.name in its)
    request = codec.plain(SettingsRequest(settings, str(path), lines, left_out, values, **more))
    return worker_class, document(replace(run, plan=replace(run.plan, details=request)))


def linted(path: Path, left_out: tuple[str, ...] = ()) -> tuple[str, list[Finding]]:
    """The worker class of a file, and what is told of its lines."""
    worker_class, shown = report_on(path, left_out)
    return worker_class, [
        one
        for one in shown.findings
        if not isinstance(one, LineMarked | NothingIgnored)
        or (one.worker_class, one.version) == (worker_class, USUAL)
    ]


@pytest.mark.parametrize("name", IGNORED)
def test_each_ignored_line_is_named_and_no_honoured_one(name: str) -> None:
    path = FILES / f"{name}.py"
    _, found = linted(path)
    told = {one.setting: one.word for one in found if isinstance(one, LineMarked)}
    assert {setting for setting, word in told.items() if word == "ignored"} == IGNORED[name]
    assert not any(isinstance(one, UnknownName) for one in found)
    others = {setting for setting, word in told.items() if word != "ignored"}
    assert others == OTHERS.get(name, set())
    source = path.read_text().splitlines()
    for line in lines_of(path):
        assert line.name in source[line.number - 1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("threads = 1\nbacklog = 512\nsendfile = False\n", [NothingIgnored]),
        ("worker_class = 'gevent'\npreload_app = False\n", [NothingIgnored]),
        ("worker_class = 'asgi'\nproxy_protocol = True\n", [LineMarked]),
        ("backlog = 1000000\n", [LineMarked]),
        ("keepalive = 5\nworkers = 3\n", [LineMarked]),
    ],
)
def test_what_a_line_sets_as_it_is_anyway_is_not_told(
    text: str, told: list[type[Finding]], tmp_path: Path
) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text(text)
    assert list(map(type, linted(path)[1])) == told


def test_a_name_that_is_no_setting_is_told(tmp_path: Path) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text("workers = 3\nkeep_alive = 5\nsecret = 1\n")
    mistyped, unused, none = linted(path)[1]
    assert text(mistyped).startswith("line 2: keep_alive is not a Gunicorn setting")
    assert text(mistyped).endswith("did you mean keepalive?")
    assert text(unused).endswith("the file does not use it")
    assert isinstance(none, NothingIgnored)
    assert none.scope == ""


def test_what_sets_nothing_or_names_a_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text("bind = '[::]:80'\nthreads: 4\naccesslog = 'stdout'\nkeepalive = 5\n")
    worker_class, shown = report_on(path)
    assert worker_class == "sync"
    annotation, stream, *_ = (text(one) for one in shown.findings)
    assert annotation == (
        "line 2: threads: 4 sets nothing, since it is an annotation: write threads = 4"
    )
    for kind in ("int", "Annotated[int, 'as many as the pool has connections']"):
        path.write_text(f"from typing import Annotated\nthreads: {kind}\n")
        (typed, *_) = report_on(path)[1].findings
        assert str(typed).endswith("write threads = VALUE")
    assert stream.startswith("line 3: accesslog = 'stdout' writes to a file of that name")
    effects = {name: effect for _, name, _, effect in shown.tables[0].rows}
    assert list(effects) == ["bind", "threads", "accesslog", "keepalive"]
    assert effects["bind"] == "the same for every class"
    assert effects["threads"] == "sets nothing"
    assert effects["accesslog"] == "a file named stdout"
    path.write_text(f"raw_env = {['NAME=value'] * 9}\n")
    assert "..." in render(report_on(path)[1])


@pytest.mark.parametrize(
    ("lines", "effect"),
    [
        ("worker_class = 'sync'", "selects sync"),
        ("worker_class = 'sync'\nthreads = 4", "selects gthread, since threads is greater than 1"),
    ],
)
def test_a_worker_class_is_reported_with_the_class_it_selects(
    tmp_path: Path, lines: str, effect: str
) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text(f"{lines}\n")
    worker_class, shown = report_on(path)
    title = f"The settings of the file, {worker_class}"
    rows = next(table.rows for table in shown.tables if table.title.startswith(title))
    assert [row[3] for row in rows if row[1] == "worker_class"] == [effect]


def test_what_is_clamped_is_told_with_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text("backlog = 1000000\n")
    (found,) = linted(path)[1]
    assert "is clamped by sync (Gunicorn 25.3.0), to 4096: " in text(found)


def test_what_was_left_out_is_not_called_heeded(tmp_path: Path) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text("keepalive = 5\nworkers = 3\n")
    (found,) = linted(path, left_out=("keepalive",))[1]
    assert isinstance(found, NothingIgnored)
    assert found.scope == EXAMINED_SCOPE
