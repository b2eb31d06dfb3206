"""`workerlab reproduce`: reproduces the write-ups behind the lab, claim by claim.

Each part is a run of another command. It is stored below the run's directory, resumed with it, and
skipped if `--from` names an earlier run. A part that cannot run here is left out, and the reason is
reported; the claims that depend on it are not shown.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from workerlab import run_store
from workerlab.errors import EnvironmentProblem, LabError, UsageError
from workerlab.experiments import add_options, runner, setup_of
from workerlab.experiments.reading import find_run
from workerlab.experiments.reproduce.claims import (
    PartRun,
    WriteUp,
    measured_cells,
    write_ups,
    write_ups_of,
)
from workerlab.experiments.reproduce.document import DONE, MISSING, PARTS, matching_cells
from workerlab.experiments.reproduce.options import ReproduceOptions
from workerlab.experiments.runner import Setup
from workerlab.model.plan import Plan
from workerlab.numbers.units import format_duration
from workerlab.options import in_turn, record_of
from workerlab.plan import null_plan
from workerlab.terminal.console import program, tell


def command(options: ReproduceOptions) -> int:
    """List the write-ups if none is named, else start a run. Returns the exit code."""
    if not options.given_options(ReproduceOptions.writeup, ReproduceOptions.resume):
        print(overview())
        return 0
    return runner.command(options)


def overview() -> str:
    """The list of write-ups, one line each."""
    rows = [
        (
            writeup.name,
            writeup.title,
            f"{len(writeup.claim)} claims",
            format_duration(writeup.takes_s(quick=False)),
            f"--quick {format_duration(writeup.takes_s(quick=True))}",
        )
        for writeup in write_ups().values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    heading = "How long each takes on two cores:"
    return "\n".join([heading, "", *lines, "", f"{program()} reproduce ab, or all"])


def setup(options: ReproduceOptions, plan: Plan | None) -> Setup:
    if plan is None:
        writeups = write_ups_of(options.writeup)
        details = {
            "writeups": [writeup.name for writeup in writeups],
            "quick": options.quick,
            "from": runs_to_reuse(options.earlier_runs, writeups),
        }
        plan = null_plan("reproduce", (), details=details)
    label = f"reproduce-{options.writeup}" if options.writeup else ""
    return Setup(plan, label=label, perform=perform)


def runs_to_reuse(names: Sequence[str], writeups: Sequence[WriteUp]) -> Mapping[str, str]:
    """Directories of earlier runs, by the part they replace. Raises UsageError for a run without a
    cell of any part."""
    reused: dict[str, str] = {}
    for name in names:
        directory = find_run(name, measured=True)
        run = run_store.load(directory)
        parts = [
            (writeup, part_name, part)
            for writeup in writeups
            for part_name, part in writeup.parts.items()
            if shlex.split(part.command)[0] == run.plan.kind
        ]
        cells = measured_cells(run) if parts else []  # other commands may have no such cells
        replaced_parts = [
            part_name
            for writeup, part_name, part in parts
            if any(matching_cells(writeup, {part.name: cells}))
        ]
        if not replaced_parts:
            writeup_names = ", ".join(writeup.name for writeup in writeups)
            raise UsageError(
                f"{name} has no cell that {writeup_names} needs: load tool, app, levels and delay"
                " must be the same"
            )
        reused |= dict.fromkeys(replaced_parts, str(directory))
    return reused


def perform(directory: Path, plan: Plan) -> None:
    """Run every part that is missing or incomplete. Raises EnvironmentProblem if none can run."""
    quick, reused = plan.details["quick"], plan.details["from"]
    parts: dict[str, PartRun] = {}
    for writeup in map(write_ups().__getitem__, plan.details["writeups"]):
        parts |= writeup.parts
    state = run_store.saved_machine(directory) or {}
    done, missing = list(state.get(DONE, ())), dict[str, str]()
    for number, (name, part) in enumerate(parts.items(), 1):
        if name in reused or name in done:
            continue
        command_line = part.quick if quick else part.command
        tell(f"part {number} of {len(parts)}: {program()} {command_line}")
        try:
            run_part(directory / PARTS / name, command_line)
            done.append(name)
        except LabError as problem:
            missing[name] = str(problem)
            tell(f"left out: {problem}")
        run_store.save_machine(directory, {DONE: done, MISSING: missing})
    if len(missing) == len(parts):
        raise EnvironmentProblem("; ".join(dict.fromkeys(missing.values())))


def run_part(directory: Path, command_line: str) -> None:
    """Run another command in its own directory, or resume its run. Raises what `runner.carry_out`
    raises, and EnvironmentProblem if it cannot run here."""
    name, *argv = shlex.split(command_line)
    parser = argparse.ArgumentParser()
    add_options(name, parser)
    _, options = next(in_turn(record_of(parser.parse_args(argv))))
    plan = run_store.load(directory).plan if (directory / "run.json").is_file() else None
    with setup_of(name)(options, plan) as prepared:
        if plan is None:
            runner.create_run(directory, prepared)
        runner.carry_out(directory, prepared)
