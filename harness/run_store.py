"""The run directory: the only door between measuring and understanding.

    run.json       what was planned and on what machine; written once, before the first trial
    machine.json   what was found out of the machine before the first trial; may be missing
    trials.jsonl   one line when a trial begins, one with its Record when it has ended
    code/          the configuration files, apps and probe the servers were started with
    raw/KEY/       everything one trial left: proofs, span maps, server log, tool output

Lines are appended and synced, so a crash or a full disk loses at most the line being written;
a torn last line is ignored by the reader and cut by the next writer. A file lock keeps two
harnesses from writing into one run; the kernel drops it with the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.model import SCHEMA, EnvironmentProblem, Fault, Record, UsageError

ROOT = Path(__file__).resolve().parent.parent
INSIDE = Path(__file__).resolve().parent / "server" / "inside"
STOPPED = Fault("interrupted", "the harness ended before this cell did")


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_synced(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)
    _sync_directory(path.parent)


def fresh(parent: str | None, label: str) -> Path:
    """A name for a new run's directory that says when and what; not there yet."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    directory = Path(parent or "results").expanduser().absolute() / name
    number = 1
    while directory.exists():
        number += 1
        directory = directory.with_name(f"{name}-{number}")
    return directory


def create(directory: Path, plan: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """Make a new run directory. Raises UsageError when it exists, EnvironmentProblem on a full
    or read-only disk."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} exists and is not empty: name another --out")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        copy_code(directory / "code")
        (directory / "raw").mkdir()
        (directory / "trials.jsonl").touch()
        document = {"schema": SCHEMA, "run": directory.name, "plan": plan}
        text = json.dumps({**document, "environment": environment}, indent=1)
        _write_synced(directory / "run.json", text)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise EnvironmentProblem(f"cannot write the run directory {directory}: {error}") from error


def learned(directory: Path) -> dict[str, Any] | None:
    """What `learn` has put down; None where it has not, or not whole."""
    try:
        found = json.loads((directory / "machine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def learn(directory: Path, values: Mapping[str, Any]) -> None:
    """Add to the run's environment. OSError on a full or read-only disk."""
    _write_synced(directory / "machine.json", json.dumps(values, indent=1))


def copy_code(code: Path) -> None:
    """All that a server is started with, copied to `code`: it runs in interpreters that know
    nothing of this checkout, and a run shows what was measured."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("apps", "configs"):
        shutil.copytree(ROOT / name, code / name, ignore=ignore)
    for name in ("probe.py", "accepts.py", "boot.py", "gunicorn_conf.py"):
        shutil.copyfile(INSIDE / name, code / name)


@dataclass(frozen=True)
class Run:
    """A run as it is on file. `records` holds the newest Record of every trial that began."""

    directory: Path
    plan: dict[str, Any]
    environment: dict[str, Any]
    records: dict[str, Record]

    @property
    def name(self) -> str:
        return self.directory.name


def load(directory: Path) -> Run:
    """Read a run. Raises UsageError when `directory` is not one, or of another schema."""
    try:
        document = json.loads((directory / "run.json").read_text(encoding="utf-8"))
        lines = (directory / "trials.jsonl").read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory} is not a run directory: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"{directory} has schema {schema!r}, this workerlab reads {SCHEMA}")
    if not {"plan", "environment"} <= document.keys():
        raise UsageError(f"{directory} is not a run directory: run.json holds no plan")
    environment = {**document["environment"], **(learned(directory) or {})}
    return Run(directory, document["plan"], environment, _records(directory, lines))


def _records(directory: Path, lines: Sequence[str]) -> dict[str, Record]:
    """The newest Record of every trial. What stands after the last newline is torn or empty."""
    records: dict[str, Record] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
            began = "began" in entry
            record = Record(entry["began"], STOPPED) if began else _record(entry["record"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{directory}/trials.jsonl is damaged at line {number}") from error
        records[record.key] = record
    return records


def _record(values: dict[str, Any]) -> Record:
    fault = values.pop("fault")
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Record(**{**values, **lists}, fault=Fault(**fault) if fault else None)


class Writer:
    """Appends to a run's trials.jsonl."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def began(self, key: str) -> None:
        self._append({"began": key})

    def ended(self, record: Record) -> None:
        self._append({"record": dataclasses.asdict(record)})

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Whole or not at all, as far as a disk allows: a torn line is cut off again."""
        line = (json.dumps(entry) + "\n").encode()
        before = os.fstat(self._handle).st_size
        try:
            written = os.write(self._handle, line)
            if written < len(line):
                os.write(self._handle, line[written:])
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, before)
            raise


@contextlib.contextmanager
def appending(directory: Path) -> Iterator[Writer]:
    """The run, locked for this process. Raises UsageError when another one is writing into it."""
    handle = os.open(directory / "trials.jsonl", os.O_RDWR | os.O_APPEND)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another workerlab is writing into {directory}") from None
        _cut_torn_line(handle)
        yield Writer(handle)
    finally:
        os.close(handle)


def _cut_torn_line(handle: int) -> None:
    data = os.pread(handle, os.fstat(handle).st_size, 0)
    os.ftruncate(handle, data.rfind(b"\n") + 1)
