"""The five write-ups behind the lab: their tables, their claims, and how each is tested.

They are data, in `writeups.toml` next to this module. A claim is judged by cells of existing
experiments, the parts of a reproduction; `ClaimTest` defines the tests. A figure is `CELL.PATH`: a
cell by its name in the file, and the path of a value in its results, as in "sync4.response.mean".
`users = "all"` selects the results of a worker class over all levels.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab import codec
from workerlab.model import Form, UsageError

FILE = Path(__file__).with_suffix(".toml")
Range = tuple[float, float]  # both ends are inside


class PartRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A run of another command. `takes_s`: its duration on two cores, in full and quick."""

    name: str
    command: str
    quick: str
    takes_s: tuple[float, float]


class ClaimTest(Struct, frozen=True, forbid_unknown_fields=True):
    """A falsifiable statement, worded by `says`. Exactly one of

        ratio      two figures: the first over the second, with its interval over fresh launches
        value      a figure, of every launch; with `over`, relative to a second one
        equals     a figure, of every launch, that equals this text
        shows      a part whose conclusions include one of these codes, and none of `lacks`

    `between`: the range of the ratio or value. `original`: the write-up's figure.
    """

    says: str
    ratio: tuple[str, str] | None = None
    value: str | None = None
    over: str | None = None
    between: Range = (0.0, float("inf"))
    equals: str | None = None
    part: str | None = None
    shows: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    form: str = "number"  # format of a value, from `numbers.formats`
    original: float | None = None


class Correction(Struct, frozen=True, forbid_unknown_fields=True):
    """What is true instead, shown by tests of its own, and why the write-up saw something else."""

    text: str
    tests: tuple[ClaimTest, ...]
    why: str = ""


class Claim(Struct, frozen=True, forbid_unknown_fields=True):
    """`cores`: on a machine with fewer, a failed test proves nothing."""

    number: int
    text: str
    tests: tuple[ClaimTest, ...]
    cores: int = 1
    instead: Correction | None = None

    @property
    def all_tests(self) -> tuple[ClaimTest, ...]:
        return (*self.tests, *(self.instead.tests if self.instead else ()))


class Heading(Struct, frozen=True, forbid_unknown_fields=True):
    """A pair of columns of the original's table: its own figures, and today's from `path`."""

    name: str
    heading: str
    path: str
    form: Form = "number"


class OriginalRow(Struct, frozen=True, forbid_unknown_fields=True):
    """`then`: a figure for each pair of columns; "" if the write-up has none. `line`, `x`: its
    curve in the chart and its position there."""

    label: str
    cell: str
    then: tuple[float | str, ...]
    line: str = ""
    x: float | None = None


class OriginalTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`chart`: the name of the pair of columns to draw."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[OriginalRow, ...]
    chart: str = ""
    x_title: str = ""


class WriteUp(Struct, frozen=True, forbid_unknown_fields=True):
    """`machine`: when and where the original was measured, as far as known. `cells`: by name, the
    part and the settings that identify each."""

    name: str
    title: str
    machine: str
    part: tuple[PartRun, ...]
    cells: Mapping[str, Mapping[str, Any]]
    table: tuple[OriginalTable, ...]
    claim: tuple[Claim, ...]

    def takes_s(self, *, quick: bool) -> float:
        return sum(part.takes_s[quick] for part in self.part)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    writeup: tuple[WriteUp, ...]


def write_ups() -> dict[str, WriteUp]:
    """By name, in order."""
    content = codec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), _File)
    return {writeup.name: writeup for writeup in content.writeup}


def named(name: str) -> tuple[WriteUp, ...]:
    """One write-up, or `all`. Raises UsageError."""
    writeups = write_ups()
    if name == "all":
        return tuple(writeups.values())
    if name not in writeups:
        raise UsageError(f"no write-up {name!r}: name {', '.join(writeups)} or all")
    return (writeups[name],)
