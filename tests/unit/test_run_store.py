"""The run directory: no finished trial is lost, and damage is reported."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from tests.builders.analysis import sentence
from tests.builders.plan import plan
from tests.builders.processes import python
from workerlab import run_store as store
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.finding import stored
from workerlab.model.evidence import Fault, Record
from workerlab.paths import write_atomically
from workerlab.run_store import SCHEMA
from workerlab.server.warmup import WorkersNotWarmedUp
from workerlab.terminal.interrupt import Stopped

ROOT = Path(__file__).resolve().parents[2]
PLAN = plan()
ENVIRONMENT: dict[str, Any] = {"cpu": None, "cores": 2}
FULL = Record(
    key="sync-c4", fault=None, lone_s=(1.001, 1.002),
    load_start_ns=1 << 60, load_end_ns=(1 << 60) + 1, start_s=0.2, warmup_s=1.5, stop_s=0.1,
    planned_requests=21, planned_duration_s=6.0, argv=("ab", "-n", "21"), exit_code=-9,
    worker_pids=(10, 11), warnings=(stored(WorkersNotWarmedUp(1)),),
    proof={"gunicorn": "25.3.0", "patched": None, "versions": {"h11": "1"}},
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "results" / "run-1"
    store.create(directory, PLAN, ENVIRONMENT)
    return directory


def trial_lines(run: Path) -> bytes:
    return (run / "trials.jsonl").read_bytes()


def write_records(run: Path, *records: Record) -> None:
    with store.appending(run) as writer:
        for record in records:
            writer.began(record.key)
            writer.ended(record)


def test_a_run_round_trips(run: Path) -> None:
    failed = Record("other", Fault("tool", "hung"))
    write_records(run, FULL, failed)
    loaded = store.load(run)
    assert (loaded.plan, loaded.environment, loaded.name) == (PLAN, ENVIRONMENT, "run-1")
    assert loaded.records == {FULL.key: FULL, failed.key: failed}


TEXT = st.text(max_size=20)
RECORDS = st.builds(
    Record,
    key=TEXT,
    fault=st.none() | st.builds(Fault, st.sampled_from(["tool", "server", "answer"]), TEXT),
    lone_s=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    exit_code=st.none() | st.integers(),
    argv=st.lists(TEXT, max_size=3).map(tuple),
    worker_pids=st.lists(st.integers(), max_size=3).map(tuple),
    proof=st.dictionaries(TEXT, st.none() | TEXT | st.integers(), max_size=3),
    warnings=st.lists(TEXT.map(sentence).map(stored), max_size=2).map(tuple),
)


@given(st.lists(RECORDS, max_size=4))
def test_any_record_round_trips(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    run = tmp_path_factory.mktemp("run")
    document = {"schema": SCHEMA, "plan": to_builtins(PLAN), "environment": ENVIRONMENT}
    (run / "run.json").write_text(json.dumps(document))
    (run / "trials.jsonl").touch()
    write_records(run, *records)
    assert store.load(run).records == {record.key: record for record in records}


def test_a_new_run_has_no_records(run: Path) -> None:
    assert store.load(run).records == {}
    assert {path.name for path in run.iterdir()} == {"run.json", "trials.jsonl", "code", "raw"}


def test_the_code_of_servers_is_copied(run: Path) -> None:
    """Servers run from the copy, in interpreters without this checkout."""
    code = run / "code"
    assert {path.name for path in code.iterdir()} == {
        "alone", "apps", "configs", "app_kind.py", "boot.py", "costs.py", "families.py",
        "gunicorn_conf.py", "heartbeat.py", "inspected.py", "maps.py", "probe.py", "stacks.py",
        "waits.py",
    }  # fmt: skip
    for name in ("alone/workerlab_app.py", "apps/sleep_wsgi.py", "configs/gevent.py"):
        assert (code / name).is_file()
    assert not list(code.rglob("__pycache__"))


def test_a_directory_that_is_not_empty_is_refused(run: Path) -> None:
    files = sorted(run.rglob("*"))
    with pytest.raises(UsageError, match="--out"):
        store.create(run, PLAN, ENVIRONMENT)
    assert sorted(run.rglob("*")) == files


def test_a_trial_that_began_but_did_not_end_was_interrupted(run: Path) -> None:
    write_records(run, FULL)
    with store.appending(run) as writer:
        writer.began("next")
    records = store.load(run).records
    assert records["next"].fault.kind == "interrupted"
    assert records[FULL.key] == FULL


def test_the_newest_record_of_a_trial_counts(run: Path) -> None:
    write_records(run, Record("a", Fault("tool", "hung")), FULL)
    write_records(run, Record("a", None))
    assert store.load(run).records == {"a": Record("a", None), FULL.key: FULL}


@pytest.mark.parametrize("records", [(), (FULL,)], ids=["first", "last"])
def test_a_torn_line_is_ignored_and_removed_by_the_next_writer(
    run: Path, records: tuple[Record, ...]
) -> None:
    """Whatever its length."""
    write_records(run, *records)
    whole, names = trial_lines(run), [record.key for record in records]
    last = json.dumps({"began": "torn"}).encode()
    for length in range(len(last) + 1):
        (run / "trials.jsonl").write_bytes(whole + last[:length])
        assert store.load(run).records == dict(zip(names, records, strict=True))
        with store.appending(run):
            assert trial_lines(run) == whole
    (run / "trials.jsonl").write_bytes(whole + last[:5])
    write_records(run, Record("next", None))
    assert list(store.load(run).records) == [*names, "next"]


WRITER = """
import sys
from pathlib import Path
from workerlab import run_store as store
with store.appending(Path(sys.argv[1])) as writer:
    writer.began("other")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_refused_until_the_first_ends(run: Path) -> None:
    with store.appending(run), pytest.raises(UsageError, match="another"), store.appending(run):
        pass
    with python(WRITER, run, isolated=False) as other:
        assert other.stdout.readline() == "writing\n"
        with pytest.raises(UsageError, match="another"), store.appending(run):
            pass
        other.kill()
    write_records(run, FULL)
    assert list(store.load(run).records) == ["other", FULL.key]


DAMAGED = ("", "{", "no run", "\0", "\udcff", "[]", "1", "null", '"text"')
SCHEMAS = {
    SCHEMA - 1: "made by an older workerlab",
    SCHEMA + 1: "made by a newer workerlab .*: update this one",
    None: "not a run directory",
    "1": "damaged",
}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, r"run\.json is damaged") for text in DAMAGED),
        *((json.dumps({"plan": 7, "schema": schema}), why) for schema, why in SCHEMAS.items()),
    ],
)
def test_a_damaged_or_foreign_document_is_refused(run: Path, text: str, why: str) -> None:
    (run / "run.json").write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=why):
        store.load(run)


@pytest.mark.parametrize("missing", ["run.json", "trials.jsonl"])
def test_a_missing_file_is_refused(run: Path, missing: str) -> None:
    (run / missing).unlink()
    with pytest.raises(UsageError, match="not a run"):
        store.load(run)


@pytest.mark.parametrize("key", ["plan", "environment"])
def test_a_document_without_a_field_is_refused(run: Path, key: str) -> None:
    document = json.loads((run / "run.json").read_text())
    del document[key]
    (run / "run.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=f"damaged: .*{key}"):
        store.load(run)


def test_unknown_fields_are_ignored(run: Path) -> None:
    write_records(run, FULL)
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**document, "mood": "good"}))
    line = json.loads(trial_lines(run).split(b"\n")[1])
    line["record"]["mood"] = "good"
    (run / "trials.jsonl").write_text(json.dumps(line) + "\n")
    assert store.load(run).records == {FULL.key: FULL}


def test_an_undecodable_name_loses_nothing_else(run: Path) -> None:
    write_records(run, FULL, Record("odd", Fault("server", "no such file: '\udcff'")))
    records = store.load(run).records
    assert records[FULL.key] == FULL
    assert records["odd"].fault == Fault("server", "no such file: '?'")


@pytest.mark.parametrize("line", ["no json", "[]", "{}", '{"record": {"key": "a"}}', "\0"])
def test_a_damaged_line_in_the_middle_is_refused(run: Path, line: str) -> None:
    """Complete lines were synced, so the whole file is suspect."""
    (run / "trials.jsonl").write_text(f'{{"began": "a"}}\n{line}\n{{"began": "b"}}\n')
    with pytest.raises(UsageError, match="line 2"):
        store.load(run)


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def failing_with(error: BaseException) -> Callable[[int], None]:
    def fail(_: int) -> None:
        raise error

    return fail


def test_a_full_disk_keeps_earlier_lines(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the line fits, then nothing."""
    write_records(run, FULL)
    whole, original_write, calls = trial_lines(run), os.write, []

    def write(handle: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise NO_SPACE
        return original_write(handle, data[: len(data) // 2])

    with store.appending(run) as writer:
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            writer.began("next")
        monkeypatch.undo()
        assert trial_lines(run) == whole
        writer.began("later")
    assert list(store.load(run).records) == [FULL.key, "later"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from workerlab import run_store as store
from workerlab.model.evidence import Record
run = Path(sys.argv[1])
size = (run / "trials.jsonl").stat().st_size
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with store.appending(run) as writer:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, size + 40))
    try:
        writer.ended(Record("too-long", None, argv=("x" * 1000,)))
    except OSError as error:
        print(error.errno)
"""


def test_a_file_size_limit_keeps_earlier_lines(run: Path) -> None:
    """The kernel refuses to write the rest of the line."""
    write_records(run, FULL)
    whole = trial_lines(run)
    with python(LIMITED, run, isolated=False, cwd=ROOT) as writer:
        assert writer.communicate(timeout=60)[0] == f"{errno.EFBIG}\n"
    assert trial_lines(run) == whole


def test_a_run_that_cannot_be_created_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing_with(NO_SPACE))
    with pytest.raises(EnvironmentProblem, match="No space"):
        store.create(tmp_path / "run", PLAN, ENVIRONMENT)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_run_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        store.create(tmp_path / "results" / "run", PLAN, ENVIRONMENT)


@pytest.mark.parametrize("error", [NO_SPACE, Stopped(2)])
def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "page.html"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", failing_with(error))
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
