"""Reads and writes run directories, the only link between measurement and analysis.

    run.json       the plan and the machine; written before the first trial, and again whenever an
                   experiment plans further cells from its results
    machine.json   values saved later, such as ceilings of the load tools; may be missing
    trials.jsonl   a line when a trial begins, and a line with its Record when it ends
    code/          the configuration files, apps and probe that the servers were started with
    raw/KEY/       the files of one trial: proofs, span maps, server log, tool output

Lines are appended and synced, so a crash or a full disk loses at most the line being written. The
reader ignores a torn last line, and the next writer removes it. A file lock prevents two processes
from writing to the same run; the kernel releases it when the process ends.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab import codec
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.model.evidence import Fault, Output, Record
from workerlab.model.plan import Plan
from workerlab.paths import bundled_root, write_atomically

SCHEMA = 2  # version of the file formats
INSIDE = Path(__file__).resolve().parent / "server" / "inside"
NOT_FINISHED = Fault("interrupted", "the harness ended before this cell did")


def write_synced(path: Path, value: object) -> None:
    """Write the value as JSON, atomically and durably: a crash of the machine does not undo it."""
    write_atomically(path, codec.indented(value))
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def new_directory(parent: str | None, label: str) -> Path:
    """An unused path for a new run's directory, named after the time and `label`. Creates
    nothing."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    base = Path(parent or "results").expanduser().absolute()
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(base / candidate for candidate in names if not (base / candidate).exists())


def create(directory: Path, plan: Plan, environment: Mapping[str, Any]) -> None:
    """Create the directory of a run. Raises UsageError if it exists and is not empty,
    EnvironmentProblem on a full or read-only disk."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} exists and is not empty: name another --out")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        copy_code(directory / "code")
        (directory / "raw").mkdir()
        (directory / "trials.jsonl").touch()
        document = {"schema": SCHEMA, "run": directory.name, "plan": plan}
        write_synced(directory / "run.json", {**document, "environment": environment})
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        # shutil.Error lists all files that failed; the first is enough
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise EnvironmentProblem(f"cannot write the run directory {directory}: {why}") from error


def update_plan(directory: Path, plan: Plan) -> None:
    """Replace the plan with one that has further cells. Raises OSError on a full or read-only disk;
    the old plan then remains."""
    document = codec.decode((directory / "run.json").read_bytes(), dict[str, Any])
    write_synced(directory / "run.json", {**document, "plan": plan})


def save_machine(directory: Path, values: Mapping[str, Any]) -> None:
    """Add to the run's environment. Raises OSError on a full or read-only disk."""
    write_synced(directory / "machine.json", values)


def saved_machine(directory: Path) -> dict[str, Any] | None:
    """The values stored by `save_machine`; None if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return codec.decode((directory / "machine.json").read_bytes(), dict[str, Any])
    return None


def copy_code(code: Path) -> None:
    """Copy all files that servers are started with to `code`: their interpreters may lack
    workerlab, and the run documents what was measured."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("apps", "configs"):
        shutil.copytree(bundled_root() / name, code / name, ignore=ignore)
    for path in INSIDE.glob("*.py"):
        if path.name not in ("__init__.py", "introspect.py"):
            shutil.copyfile(path, code / path.name)
    shutil.copytree(INSIDE / "alone", code / "alone", ignore=ignore)


class Run(Struct, frozen=True):
    """A saved run. `records` holds the newest Record of every trial that began."""

    directory: Path
    plan: Plan
    environment: dict[str, Any]
    records: dict[str, Record]

    @property
    def name(self) -> str:
        return self.directory.name


class _Entry(Struct, frozen=True):
    """A line of trials.jsonl; exactly one field is set."""

    began: str | None = None
    record: Record | None = None


class _Schema(Struct, frozen=True):
    """The part of run.json that any version can read."""

    schema: int | None = None


class _Document(Struct, frozen=True):
    plan: Plan
    environment: dict[str, Any]


def load(directory: Path) -> Run:
    """The saved run. Raises UsageError if it is not a run, is damaged, or has another schema."""
    try:
        data = (directory / "run.json").read_bytes()
        lines = (directory / "trials.jsonl").read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{directory} is not a run directory: {error}") from error
    try:
        schema = codec.decode(data, _Schema).schema
        if schema is None:
            raise UsageError(f"{directory} is not a run directory: its run.json has no schema")
        if schema != SCHEMA:
            newer = schema > SCHEMA
            writer, advice = ("a newer", "update this one") if newer else ("an older", "use that")
            raise UsageError(
                f"{directory} was made by {writer} workerlab (schema {schema}, this one reads"
                f" {SCHEMA}): {advice} to read it"
            )
        document = codec.decode(data, _Document)
    except ValueError as error:
        raise UsageError(f"{directory}/run.json is damaged: {error}") from error
    environment = {**document.environment, **(saved_machine(directory) or {})}
    return Run(directory, document.plan, environment, _records(directory, lines))


def _records(directory: Path, lines: Sequence[bytes]) -> dict[str, Record]:
    """The newest Record of every trial. The text after the last newline is torn or empty."""
    records: dict[str, Record] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = codec.decode(line, _Entry)
            record = Record(entry.began, NOT_FINISHED) if entry.began is not None else entry.record
            if record is None:
                raise ValueError("the entry is empty")
        except ValueError as error:
            raise UsageError(
                f"{directory}/trials.jsonl is damaged in line {number}: {error}; delete the line to"
                " lose only that trial"
            ) from error
        records[record.key] = record
    return records


def read_text(path: Path) -> str:
    """The text of the file, or an empty one if it is missing."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def tool_output(trial: Path, files: Iterable[str], exit_code: int | None) -> Output:
    """The output of a load tool, with those of `files` that exist. `trial`: the directory of the
    trial."""
    directory = trial / "tool"
    contents = {name: read_text(directory / name) for name in files if (directory / name).is_file()}
    stdout, stderr = read_text(directory / "stdout"), read_text(directory / "stderr")
    return Output(stdout, stderr, exit_code, contents)


class Writer:
    """Appends to a run's trials.jsonl."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def began(self, key: str) -> None:
        self._append({"began": key})

    def ended(self, record: Record) -> None:
        self._append({"record": record})

    def _append(self, entry: Mapping[str, object]) -> None:
        """Write the entry completely or not at all: a partial line is removed if the disk allows
        it."""
        line = codec.encode(entry) + b"\n"
        old_size = os.fstat(self._handle).st_size
        try:
            count = os.write(self._handle, line)
            if count < len(line):
                os.write(self._handle, line[count:])
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, old_size)
            raise


@contextlib.contextmanager
def appending(directory: Path) -> Iterator[Writer]:
    """The run's writer, with the run locked and a torn last line removed. Raises UsageError if
    another process writes to the run."""
    handle = os.open(directory / "trials.jsonl", os.O_RDWR | os.O_APPEND)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another workerlab is writing to {directory}") from None
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        os.ftruncate(handle, data.rfind(b"\n") + 1)
        yield Writer(handle)
    finally:
        os.close(handle)
