"""Pairs: what a real tool left, and what it means.

NAME.stdout, NAME.stderr and NAME.<file of the tool> were recorded with ab 2.4.71 and wrk 4.1.0
against Gunicorn 25.3.0 (sync, 4 workers; where the name says so, gthread with 2) and a server that
misbehaves on purpose, with the lab's generators against its target. NAME.expected.json has the
words that were run, the exit code, and the measurement or the error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from workerlab.load import ab
from workerlab.load.registry import TOOLS
from workerlab.model import Measurement, Output, ParseError, Summary

DATA = Path(__file__).parents[2] / "data"
PAIRS = sorted(
    (path.parent.name, path.name.removesuffix(".expected.json"))
    for tool in TOOLS
    for path in (DATA / tool).glob("*.expected.json")
)

LINES = 40  # at the beginning and at the end of a text: it is cut at each of them


def expected(tool: str, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DATA / tool / f"{name}.expected.json").read_text())
    return document


def recorded(tool: str, name: str) -> Output:
    def text(suffix: str) -> str | None:
        path = DATA / tool / f"{name}.{suffix}"
        return path.read_text() if path.exists() else None

    found = {file: text(file) for file in TOOLS[tool].OUTPUT_FILES}
    return Output(
        stdout=text("stdout") or "",
        stderr=text("stderr") or "",
        exit_code=expected(tool, name)["exit_code"],
        files={file: content for file, content in found.items() if content is not None},
    )


def cut_short(text: str) -> Iterator[str]:
    """The text cut at each line boundary, and in the middle of each line; of a long table, whose
    lines are alike, at each tenth."""
    stop, lines = 0, text.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if LINES <= place < len(lines) - LINES and place % 10:
            stop += len(line)
            continue
        yield text[:stop]
        yield text[: stop + len(line) // 2]
        stop += len(line)
        if stop < len(text) or line.endswith("\n"):
            yield text[: stop - 1]


def truncations(output: Output) -> Iterator[Output]:
    for stdout in cut_short(output.stdout):
        yield replace(output, stdout=stdout)
    for name, content in output.files.items():
        rest = {other: text for other, text in output.files.items() if other != name}
        yield replace(output, files=rest)
        for text in cut_short(content):
            yield replace(output, files={**rest, name: text})


def outcome(tool: str, output: Output) -> Measurement | None:
    try:
        return TOOLS[tool].parse(output)
    except ParseError:
        return None


def test_there_are_recordings_of_every_tool() -> None:
    counts = {tool: sum(pair[0] == tool for pair in PAIRS) for tool in TOOLS}
    assert counts["ab"] >= 12
    assert counts["wrk"] >= 8
    assert counts["fast"] >= 12


@pytest.mark.parametrize(("tool", "name"), PAIRS)
def test_recording_means_what_stands_beside_it(tool: str, name: str) -> None:
    wanted = expected(tool, name)
    if "error" in wanted:
        with pytest.raises(ParseError) as caught:
            TOOLS[tool].parse(recorded(tool, name))
        assert (caught.value.why, caught.value.line) == (wanted["error"], wanted["line"])
        return
    measurement = TOOLS[tool].parse(recorded(tool, name))
    seen = to_builtins(measurement)
    assert len(seen.pop("responses_s")) == (measurement.requests if tool == "ab" else 0)
    percentiles_s = seen.pop("percentiles_s")
    apart = bool(measurement.timings or measurement.responses_s)
    told = tool not in ("ab", "wrk") and not apart and measurement.requests > 1
    assert bool(percentiles_s) is told
    if percentiles_s:
        assert percentiles_s[50.0] == measurement.response.p50
        assert list(percentiles_s.values()) == sorted(percentiles_s.values())
    seen |= {name: len(seen[name]) for name in ("timings", "connects_s")}
    seen["notes"] = [[note.code, note.values] for note in measurement.notes]
    nothing = to_builtins(Measurement(0, 0, {}, 0.0, None, Summary()))
    del nothing["responses_s"], nothing["percentiles_s"]
    want = {**nothing, "timings": 0, "connects_s": 0, "notes": [], **wanted["measurement"]}
    assert seen == want


@pytest.mark.parametrize(("tool", "name"), PAIRS)
def test_cut_short_it_says_the_same_or_nothing(tool: str, name: str) -> None:
    whole = recorded(tool, name)
    meaning = outcome(tool, whole)
    outcomes = [outcome(tool, part) for part in truncations(whole)]
    assert all(part is None or part == meaning for part in outcomes)
    assert None in outcomes or not whole.stdout


@pytest.mark.parametrize(("tool", "name"), PAIRS)
@pytest.mark.parametrize("exit_code", [1, -9, None])
def test_only_exit_code_0_is_believed(tool: str, name: str, exit_code: int | None) -> None:
    assert outcome(tool, replace(recorded(tool, name), exit_code=exit_code)) is None


WHOLE_AB = [name for tool, name in PAIRS if tool == "ab" and "error" not in expected(tool, name)]


@pytest.mark.parametrize("name", WHOLE_AB)
def test_ab_rows_say_what_its_files_say(name: str) -> None:
    """A second reading, by other means: the mean and the middle of the -g file, in whole ms."""
    output = recorded("ab", name)
    meaning = ab.AB.parse(output)
    totals = [int(row.split("\t")[4]) for row in output.files["gnuplot.tsv"].splitlines()[1:]]
    assert meaning.requests == len(totals)
    assert meaning.response.mean == pytest.approx(sum(totals) / len(totals) / 1000, abs=5.1e-4)
    assert meaning.response.max == pytest.approx(max(totals) / 1000, abs=5.1e-4)
    middle = sorted(totals)[(len(totals) - 1) // 2 : len(totals) // 2 + 1]
    assert meaning.response.p50 == pytest.approx(sum(middle) / len(middle) / 1000, abs=5.1e-4)
    if len(totals) > 1:
        p90_ms = quantiles(totals, n=10, method="inclusive")[8]
        assert meaning.response.p90 == pytest.approx(p90_ms / 1000, abs=5.1e-4)
