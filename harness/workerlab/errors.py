"""Errors that the user can fix, each in one sentence, and exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command. A signal gives 128 + its number."""

    DONE = 0
    INVALID = 1  # a cell is invalid, or the run shows too little
    USAGE = 2
    UNAVAILABLE = 3  # the machine, interpreter or app does not allow it
    TARGET_MISSED = 4  # a target is missed, a limit is exceeded, or nothing meets the target
    INCONCLUSIVE = 5  # with --strict: the outcome of a limit is inconclusive


class LabError(Exception):
    """An error the user can fix, in one sentence."""

    exit_code = ExitCode.UNAVAILABLE


class UsageError(LabError):
    """Invalid arguments; nothing was started."""

    exit_code = ExitCode.USAGE


class EnvironmentProblem(LabError):
    """The machine, interpreter or app lacks something, or something does not start."""


class ParseError(Exception):
    """Tool output that cannot be parsed with certainty. `line`: the offending line."""

    def __init__(self, why: str, line: str = "") -> None:
        self.why, self.line = why, line.strip()[:200]
        super().__init__(f"{why}: {self.line!r}" if self.line else why)
