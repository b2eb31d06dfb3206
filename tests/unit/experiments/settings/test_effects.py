"""The effects of settings on each class, from recorded launches of seven classes under four
versions of Gunicorn, and the lines of ten Gunicorn files that have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gunicorn.config import make_settings
from msgspec.structs import replace

from tests.builders.runs import recorded
from workerlab import codec, run_store
from workerlab.experiments.settings import gunicorn_file
from workerlab.experiments.settings.command import (
    LaunchJobs,
    SettingsRequest,
    _request_of_file,
    launch_name,
)
from workerlab.experiments.settings.document import (
    EXAMINED_SCOPE,
    ClassExamined,
    LineMarked,
    NotExamined,
    NothingIgnored,
    document,
    evidence_of,
    examined_classes,
)
from workerlab.experiments.settings.document import title as document_title
from workerlab.experiments.settings.effect_types import Effect
from workerlab.experiments.settings.effects import SETTING_NAMES, SETTINGS, effects
from workerlab.finding import Finding
from workerlab.model.plan import Trial
from workerlab.model.result import Document
from workerlab.plan import trials
from workerlab.report.text import render
from workerlab.report.values import text
from workerlab.run_store import Run
from workerlab.server.inside.introspect import execute_file, settings_of
from workerlab.server.preflight import Interpreter
from workerlab.server.worker_classes import CLASSES, class_named

FILES = Path(__file__).resolve().parents[3] / "data" / "gunicorn_files"
VERSIONS = ("23.0.0", "25.3.0", "26.2.0", "27.0.1")
USUAL = "25.3.0"
MISSING = {("asgi", "23.0.0"), ("eventlet", "26.2.0"), ("eventlet", "27.0.1")}
# In addition to the settings it ignores, which its row lists
CHANGES = {
    "sync": {"threads", "sendfile"},
    "gthread": {"worker_connections", "timeout", "sendfile"},
    "gevent": {"preload_app"},
    "tornado": {"statsd_host"},
    "asgi": {"graceful_timeout"},
    "uvicorn": {"statsd_host"},
}


@cache
def recorded_run() -> Run:
    return run_store.load(recorded("settings"))


@cache
def examined() -> Mapping[tuple[str, str], ClassExamined]:
    """By worker class and version of Gunicorn."""
    classes = examined_classes(recorded_run())
    return {(result.worker_class, result.version): result for result in classes}


def effect(name: str, worker_class: str, version: str = USUAL) -> Effect:
    return examined()[worker_class, version].effects[name]


def settings_with(word: str, worker_class: str, version: str = USUAL) -> set[str]:
    effects = examined()[worker_class, version].effects
    return {name for name, effect in effects.items() if effect.word == word}


def test_each_class_was_examined_where_it_exists() -> None:
    existing = {(name, version) for name in CLASSES for version in VERSIONS} - MISSING
    assert set(examined()) == existing
    assert not any(result.missing for result in examined().values())


@pytest.mark.parametrize("worker_class", CLASSES)
def test_each_class_ignores_or_changes_some_settings(worker_class: str) -> None:
    ignores = {*class_named(worker_class).ignores}
    if worker_class == "sync":
        ignores.remove("threads")  # with multiple threads, sync becomes gthread
    assert settings_with("ignored", worker_class) == ignores
    assert settings_with("changes", worker_class) == CHANGES.get(worker_class, set())
    assert settings_with("clamped", worker_class) == {"backlog"} - ignores


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_later_versions_honour_more_settings(version: str) -> None:
    row = class_named("asgi")
    honoured = {name for name, since in row.effective_from.items() if version >= since}
    assert settings_with("ignored", "asgi", version) == {*row.ignores} - honoured


def test_some_effects_differ_between_versions() -> None:
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


def test_some_classes_treat_open_connections_differently() -> None:
    wedged = [key for key in examined() if effect("crowd", *key).code == "crowd.wedged"]
    assert wedged == [("gthread", "23.0.0")]
    codes = {name: effect("under_way", name).code for name in CLASSES}
    cut = {name for name, code in codes.items() if code == "under_way.cut"}
    assert cut == {"gevent", "eventlet", "asgi"}
    assert set(codes.values()) == {"under_way.cut", "under_way.passed"}
    changed = [name for name in CLASSES if effect("sighup", name).code == "reload.changed"]
    assert changed == ["uvicorn"]


def test_some_effects_are_specific_to_a_class() -> None:
    assert effect("max_requests", "sync").code == "max_requests"
    assert effect("max_requests", "gevent").code == "max_requests.overrun"
    assert effect("timeout", "sync").code == effect("timeout", "tornado").code == "timeout.both"
    assert effect("timeout", "gevent").code == "timeout.blocked"
    assert effect("forwarded_allow_ips", "sync").code == "forwarded.scheme"
    assert effect("forwarded_allow_ips", "uvicorn").code == "forwarded.both"
    assert effect("worker_connections", "gthread").code == "worker_connections.accepts.ends"
    # gthread checks once a second
    assert 2.9 < effect("keepalive", "gthread").values["closed_s"] < 4.5
    assert effect("keepalive", "gevent").values["closed_s"] == pytest.approx(3.0, abs=0.5)


def test_each_setting_has_an_effect_with_a_sentence() -> None:
    assert effects({}) == {}  # without launches
    assert set(examined()["sync", USUAL].effects) == set(SETTINGS)
    for result in examined().values():
        for effect in result.effects.values():
            assert effect.observation
            assert "None" not in effect.observation


@pytest.mark.parametrize(
    ("setting", "changes", "observation"),
    [
        ("umask", {"common": {"socket_mode": None}}, "no Unix socket was found"),
        ("backlog", {"preload": {"most_queue": 65_536}},
         "at 7, the kernel limited the accept queue to 7; at 1,000,000, to 4096"
         " (net.core.somaxconn is 65,536)"),
        ("timeout",
         {"timeout_wait": {"killed": True, "took_s": 2.5}, "timeout_block": {"killed": False}},
         "at 2 s, a worker whose request waited for 6.00 s was killed after 2.50 s; one that a"
         " request blocked was not"),
        ("keepalive", {"sockets": {"closed_s": 6.0, "says_close": False}},
         "at 3 s, an idle connection was closed after 6.00 s"),
        ("max_requests", {"recycling": {"served": [], "asked": 240}},
         "at 4, no worker was replaced at that limit in 240 requests"),
        ("reload", {"touched": {"code_s": None}},
         "after the app's file changed, no worker was replaced within 8.00 s"),
        ("limit_request_line", {"common": {"line": None}},
         "at 300, a request line of more than 600 bytes was not answered: the connection was"
         " closed"),
        ("sighup", {"reload": {"replaced_s": None}}, "no worker was replaced within 30.0 s"),
        ("crowd", {"crowded": {"status": None}},
         "3 clients connected, sent nothing for 9.00 s and left; the next request received no"
         " response within 5.00 s"),
    ],
)  # fmt: skip
def test_changed_launches_show_other_effects(
    setting: str, changes: Mapping[str, Mapping[str, object]], observation: str
) -> None:
    keys = {launch_name(trial): trial.key for trial in trials(recorded_run().plan)
            if trial.cell.name.startswith(f"sync-{USUAL}-")}  # fmt: skip
    evidence = evidence_of(recorded_run().directory, keys)
    changed = {name: {**launch, **changes.get(name, {})} for name, launch in evidence.items()}
    assert SETTINGS[setting].effect(changed).observation == observation


# --- ten files ------------------------------------------------------------------------------------

IGNORED = {
    "01_small_site": {"keepalive"},
    "02_cores": set[str](),
    "03_container": set[str](),
    "04_greenlets": {"threads", "sendfile"},
    "05_fastapi": {"threads", "worker_connections", "limit_request_line",
                   "limit_request_field_size", "access_log_format", "pre_request", "worker_exit"},
    "06_asgi": {"backlog", "worker_connections", "keepalive", "header_map", "proxy_protocol",
                "forwarded_allow_ips"},
    "07_tornado": {"worker_connections", "keepalive", "accesslog", "access_log_format",
                   "limit_request_line", "post_request"},
    "08_metrics": {"worker_connections"},
    "09_settings_by_stage": {"keepalive"},
    "10_green_threads": {"threads", "sendfile"},
}  # fmt: skip
# Also marked: their effect is not the one that their names suggest
OTHERS = {
    "02_cores": {"worker_connections"},
    "06_asgi": {"graceful_timeout"},
    "07_tornado": {"statsd_host"},
    "09_settings_by_stage": {"sendfile"},
}


def test_every_file_has_an_expectation() -> None:
    assert {path.stem for path in FILES.glob("*.py")} == set(IGNORED)


KNOWN = sorted(make_settings())


def lines_of(path: Path) -> tuple[gunicorn_file.FileLine, ...]:
    return gunicorn_file.SourceFile(path).lines(execute_file(str(path))[1].of(KNOWN), KNOWN)


def with_plan(**changes: Any) -> Run:
    """The recorded run with a changed plan."""
    return replace(recorded_run(), plan=replace(recorded_run().plan, **changes))


def report_on(
    path: Path, left_out: tuple[str, ...] = (), absent: Mapping[str, str] = {}
) -> tuple[str, Document]:
    """The worker class of a file and its document. `left_out`: settings that --quick omits;
    `absent`: as in a request."""
    values, lines = settings_of(execute_file(str(path))[0]), lines_of(path)
    named = {line.name for line in lines if line.sets}
    request = SettingsRequest(
        settings=tuple(name for name in SETTING_NAMES if name in named.difference(left_out)),
        config=str(path),
        lines=lines,
        left_out=left_out,
        values={name: value for name, value in values.items() if name in named},
        strange=gunicorn_file.unknown_names(lines, KNOWN),
        absent=absent,
    )
    return gunicorn_file.class_of(values), document(with_plan(details=codec.plain(request)))


def effects_of(path: Path, setting: str) -> tuple[list[str], Document]:
    """The effects of a setting in the table of the file's own class, and the whole document."""
    worker_class, report = report_on(path)
    title = f"Settings in the file, {worker_class}"
    rows = next(table.rows for table in report.tables if table.title.startswith(title))
    return [row[3] for row in rows if row[1] == setting], report


def linted(path: Path, left_out: tuple[str, ...] = ()) -> list[Finding]:
    """The findings on the lines of a file, for its own worker class."""
    worker_class, report = report_on(path, left_out)
    return [
        finding
        for finding in report.findings
        if not isinstance(finding, LineMarked | NothingIgnored)
        or (finding.worker_class, finding.version) == (worker_class, USUAL)
    ]


@pytest.mark.parametrize("name", IGNORED)
def test_ignored_lines_are_named_and_honoured_lines_are_not(name: str) -> None:
    path = FILES / f"{name}.py"
    findings = linted(path)
    assert not any(isinstance(finding, gunicorn_file.UnknownName) for finding in findings)
    marked = [finding for finding in findings if isinstance(finding, LineMarked)]
    ignored = {line.setting for line in marked if line.word == "ignored"}
    assert ignored == IGNORED[name]
    assert {line.setting for line in marked} - ignored == OTHERS.get(name, set())
    source = path.read_text().splitlines()
    for line in lines_of(path):
        assert line.name in source[line.number - 1]


def conf(directory: Path, text: str) -> Path:
    path = directory / "gunicorn.conf.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("threads = 1\nbacklog = 512\nsendfile = False\n", [NothingIgnored]),
        ("worker_class = 'gevent'\npreload_app = False\n", [NothingIgnored]),
        ("worker_class = 'asgi'\nproxy_protocol = True\n", [LineMarked]),
        ("backlog = 1000000\n", [LineMarked]),
        ("keepalive = 5\nworkers = 3\n", [LineMarked]),
    ],
)
def test_ineffective_lines_are_marked_unless_they_set_the_default(
    text: str, kinds: list[type[Finding]], tmp_path: Path
) -> None:
    assert list(map(type, linted(conf(tmp_path, text)))) == kinds


def test_an_unknown_name_is_reported(tmp_path: Path) -> None:
    source = "workers = 3\nkeep_alive = 5\nsecret = 1\n"
    mistyped, unused, none = linted(conf(tmp_path, source))
    assert text(mistyped).startswith("line 2: keep_alive is not a Gunicorn setting")
    assert text(mistyped).endswith("did you mean keepalive?")
    assert text(unused).endswith("the file does not use it")
    assert isinstance(none, NothingIgnored)
    assert none.scope == ""


def test_annotations_and_stream_names_are_reported(tmp_path: Path) -> None:
    source = "bind = '[::]:80'\nthreads: 4\naccesslog = 'stdout'\nkeepalive = 5\n"
    worker_class, report = report_on(conf(tmp_path, source))
    assert worker_class == "sync"
    annotation, stream, *_ = map(text, report.findings)
    assert annotation == (
        "line 2: threads: 4 sets nothing, since it is an annotation: write threads = 4"
    )
    assert stream.startswith("line 3: accesslog = 'stdout' writes to a file of that name")
    effects = {name: effect for _, name, _, effect in report.tables[0].rows}
    assert list(effects) == ["bind", "threads", "accesslog", "keepalive"]
    assert effects["bind"] == "the same for every class"
    assert effects["threads"] == "sets nothing"
    assert effects["accesslog"] == "a file named stdout"
    for annotated in ("int", "Annotated[int, 'as many as the pool has connections']"):
        source = f"from typing import Annotated\nthreads: {annotated}\n"
        finding, *_ = report_on(conf(tmp_path, source))[1].findings
        assert str(finding).endswith("write threads = VALUE")


def test_overridden_lines_missing_paths_and_unexamined_settings_are_reported(
    tmp_path: Path,
) -> None:
    source = "timeout, workers = 30, 3\ntimeout = 7\nworker_tmp_dir = '/no'\nloglevel = 'info'\n"
    _, report = report_on(conf(tmp_path, source), absent={"worker_tmp_dir": "/no"})
    overridden, missing, *_ = map(text, report.findings)
    assert overridden == "line 1: timeout is overridden by line 2"
    assert missing == (
        "line 3: worker_tmp_dir = '/no': Gunicorn does not start because /no does not exist"
    )
    table = report.tables[0]
    effects = {name: effect for _, name, _, effect in table.rows}
    assert effects["worker_tmp_dir"] == "Gunicorn does not start"
    assert effects["loglevel"] == "not examined"
    assert "worker_tmp_dir: " not in text(table.note)
    _, report = report_on(conf(tmp_path, "workers, umask = 3, 7\nbacklog = 64\n"))
    rows = render(report).partition("line  setting")[2].splitlines()[1:5]
    assert all(rows), "no blank line between the settings of one line and another's"


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("workers = 3\n", "sync (Gunicorn's default)"),
        ("threads = 3\n", "gthread (sync, the default, with multiple threads)"),
        ("worker_class = 'gthread'\n", "gthread"),
    ],
)
def test_the_title_names_the_class_and_why(tmp_path: Path, source: str, title: str) -> None:
    values = settings_of(execute_file(str(conf(tmp_path, source)))[0])
    name = gunicorn_file.class_of(values)
    cells = tuple(cell for cell in recorded_run().plan.cells if cell.server.worker_class == name)
    run = replace(with_plan(cells=cells), environment={})
    request = SettingsRequest(("workers",), "a.py", values=values)
    assert document_title(run, request, ()) == f"What a.py does for {title}."


def test_an_interrupted_run_shows_the_settings_examined_so_far() -> None:
    by_name = {cell.name: cell for cell in recorded_run().plan.cells}
    touched = by_name["sync-25.3.0-touched"]
    absent = replace(touched, name="sync-25.3.0-absent")
    empty = document(replace(with_plan(cells=(absent,)), records={}))
    assert "Nothing was examined yet" in map(text, empty.findings)
    assert empty.tables == ()
    (table,) = document(with_plan(cells=(absent, touched))).tables
    assert [row[0] for row in table.rows] == ["reload", "reload_extra_files"]


def test_the_time_left_is_that_of_two_launches_at_a_time() -> None:
    plan = recorded_run().plan
    by_launch = {launch_name(trial): trial for trial in trials(plan)}
    durations_s = {"timeout_wait": 8.0, "timeout_block": 6.0, "stop": 3.0, "common": 1.0}
    remaining = [by_launch[name] for name in durations_s]

    def left(remaining: list[Trial], so_far_s: Mapping[str, float]) -> float | None:
        jobs = LaunchJobs(plan)
        return jobs.left_s(lambda trial: durations_s[launch_name(trial)], remaining, so_far_s)

    assert left(remaining[:1], {}) == 8.0
    assert left(remaining, {}) == 9.0  # stop after timeout_block
    assert left(remaining[1:], {remaining[1].key: 4.0, remaining[2].key: 9.0}) == 2.0
    assert left([], {}) == 0.0


def test_reload_means_the_signal_in_an_older_run() -> None:
    plan = with_plan(details={"settings": ["workers", "reload"]}).plan
    assert SettingsRequest.of(plan).settings == ("workers", "reload")
    cells = tuple(cell for cell in plan.cells if not cell.name.endswith("-touched"))
    assert SettingsRequest.of(replace(plan, cells=cells)).settings == ("workers", "sighup")


def test_settings_that_no_experiment_covered_are_noted_in_a_later_version_too(
    tmp_path: Path,
) -> None:
    path = conf(tmp_path, "workers = 3\nloglevel = 'info'\nbind = ':80'\nreload_engine: str\n")
    values, assignments = execute_file(str(path))
    reader = Interpreter(
        "python3", USUAL, CLASSES, missing=(), classes={}, settings=settings_of(values),
        names=KNOWN, assignments=assignments.of(KNOWN),
    )  # fmt: skip
    request = _request_of_file(str(path), SETTING_NAMES, lines_of(path), reader)
    assert (request.settings, request.unknown) == (("workers",), ("loglevel",))
    assert request.values["workers"] == 3
    # umask was not yet examined when this run was saved
    saved = {**codec.plain(request), "unknown": ["loglevel", "umask"]}
    assert NotExamined(("loglevel", "umask")) in document(with_plan(details=saved)).notes


def test_a_clamped_value_is_reported_with_its_limit(tmp_path: Path) -> None:
    (finding,) = linted(conf(tmp_path, "backlog = 1000000\n"))
    assert "is clamped by sync (Gunicorn 25.3.0), to 4096: " in text(finding)


def test_a_setting_that_was_left_out_is_not_called_honoured(tmp_path: Path) -> None:
    path = conf(tmp_path, "keepalive = 5\nworkers = 3\n")
    (finding,) = linted(path, left_out=("keepalive",))
    assert isinstance(finding, NothingIgnored)
    assert finding.scope == EXAMINED_SCOPE


@pytest.mark.parametrize(
    ("source", "setting", "effect"),
    [
        ("access_log_format = '%(h)s'\n", "access_log_format", "no effect without accesslog"),
        ("access_log_format = '%(h)s'\naccesslog = None\n"
         "logger_class = 'gunicorn.glogging.Logger'\n", "access_log_format",
         "no effect without accesslog"),
        ("access_log_format = '%(h)s'\nlogger_class = 'own.Log'\n", "access_log_format",
         "honoured"),
        ("access_log_format = '%(h)s'\naccesslog = '-'\n", "access_log_format", "honoured"),
        ("access_log_format = '%(h)s'\nsyslog = True\n", "access_log_format", "honoured"),
        ("worker_class = 'uvicorn'\naccess_log_format = '%(h)s'\n", "access_log_format", "ignored"),
        ("max_requests_jitter = 5\n", "max_requests_jitter", "no effect without max_requests"),
        ("max_requests_jitter = 0\n", "max_requests_jitter", "honoured"),
        ("statsd_prefix = 'shop'\n", "statsd_prefix", "no effect without statsd_host"),
        ("capture_output = True\nerrorlog = '-'\n", "capture_output",
         "no effect without errorlog"),
        ("proxy_allow_ips = '*'\nproxy_protocol = 'off'\n", "proxy_allow_ips",
         "no effect without proxy_protocol"),
        ("ciphers = 'X'\nkeyfile = 'a.pem'\n", "keyfile", "every request fails without certfile"),
        ("ciphers = 'X'\n", "ciphers", "no effect without certfile"),
        ("worker_class = 'sync'\n", "worker_class", "selects sync"),
        ("worker_class = 'sync'\nthreads = 4\n", "worker_class",
         "selects gthread, since threads is greater than 1"),
    ],
)  # fmt: skip
def test_the_effect_of_a_setting_may_depend_on_another_one(
    tmp_path: Path, source: str, setting: str, effect: str
) -> None:
    effects, report = effects_of(conf(tmp_path, source), setting)
    assert effects == [effect]
    sentences = [text(finding) for finding in report.findings]
    assert any(sentence.endswith(f": {effect}") for sentence in sentences) == ("without" in effect)


def test_the_report_notes_that_the_file_selects_another_class(tmp_path: Path) -> None:
    _, report = report_on(conf(tmp_path, "worker_class = 'uvicorn'\nthreads = 4\n"))
    effects = {table.title: table.rows[0][3] for table in report.tables}
    assert effects[f"Settings in the file, uvicorn, Gunicorn {USUAL}"] == "selects uvicorn"
    assert effects[f"Settings in the file, sync, Gunicorn {USUAL}"] == (
        "selects uvicorn; examined for sync, as requested"
    )


def test_all_entries_of_a_long_value_are_shown(tmp_path: Path) -> None:
    path = conf(tmp_path, f"raw_env = {[f'NAME_{number}=value' for number in range(9)]}\n")
    page = render(report_on(path)[1])
    assert all(f"'NAME_{number}=...'" in page for number in range(9))
    assert max(map(len, page.splitlines())) <= 100
