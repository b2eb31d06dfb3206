"""Recorded outputs of real tools, and the measurements expected from them.

NAME.stdout, NAME.stderr and NAME.<file of the tool> were recorded with ab 2.4.71, wrk 4.1.0,
h2load 1.52.0 and oha 1.16.0 against Gunicorn 25.3.0 (sync, 4 workers, or gthread with 2 if the name
says so) and a server that misbehaves on purpose, and with the lab's generators against the lab's
target. NAME.expected.json has the command, the exit code, and the measurement or the error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from workerlab.errors import ParseError
from workerlab.load import ab
from workerlab.load.registry import TOOLS
from workerlab.model.evidence import Measurement, Output, Summary

DATA = Path(__file__).parents[2] / "data"
PAIRS = sorted(
    (path.parent.name, path.name.removesuffix(".expected.json"))
    for tool in TOOLS
    for path in (DATA / tool).glob("*.expected.json")
)

CUT_LINES = 40  # a text is cut at each of its first and last 40 lines


def expected(tool: str, name: str) -> Any:
    return json.loads((DATA / tool / f"{name}.expected.json").read_text())


def recorded(tool: str, name: str) -> Output:
    paths = {
        suffix: DATA / tool / f"{name}.{suffix}"
        for suffix in ("stdout", "stderr", *TOOLS[tool].OUTPUT_FILES)
    }
    files = {suffix: path.read_text() for suffix, path in paths.items() if path.exists()}
    stdout, stderr = files.pop("stdout", ""), files.pop("stderr", "")
    return Output(stdout, stderr, expected(tool, name)["exit_code"], files)


def cut_short(text: str) -> Iterator[str]:
    """The text, cut at each line boundary and in the middle of each line; in the similar lines of a
    long table, only at every tenth line."""
    stop, lines = 0, text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if CUT_LINES <= index < len(lines) - CUT_LINES and index % 10:
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
        other_files = {other: text for other, text in output.files.items() if other != name}
        yield replace(output, files=other_files)
        for text in cut_short(content):
            yield replace(output, files={**other_files, name: text})


def outcome(tool: str, output: Output) -> Measurement | None:
    try:
        return TOOLS[tool].parse(output)
    except ParseError:
        return None


def test_there_are_recordings_of_the_main_tools() -> None:
    counts = Counter(tool for tool, _ in PAIRS)
    assert counts >= Counter(ab=12, wrk=8, fast=12, h2load=12, oha=12)


@pytest.mark.parametrize(("tool", "name"), PAIRS)
def test_a_recording_has_the_expected_measurement(tool: str, name: str) -> None:
    document = expected(tool, name)
    if "error" in document:
        with pytest.raises(ParseError) as caught:
            TOOLS[tool].parse(recorded(tool, name))
        assert (caught.value.why, caught.value.line) == (document["error"], document["line"])
        return
    measurement = TOOLS[tool].parse(recorded(tool, name))
    actual = to_builtins(measurement)
    responses = measurement.requests if tool in ("ab", "h2load") else 0
    assert len(actual.pop("responses_s")) == responses
    percentiles_s = actual.pop("percentiles_s")
    has_response_times = bool(measurement.timings or measurement.responses_s)
    assert bool(percentiles_s) is (
        tool not in ("ab", "wrk") and not has_response_times and measurement.requests > 1
    )
    if percentiles_s:
        assert percentiles_s[50.0] == measurement.response.p50
        assert list(percentiles_s.values()) == sorted(percentiles_s.values())
    actual |= {name: len(actual[name]) for name in ("timings", "connects_s")}
    actual["notes"] = [[note.code, note.values] for note in measurement.notes]
    empty = to_builtins(Measurement(0, 0, {}, 0.0, None, Summary()))
    del empty["responses_s"], empty["percentiles_s"]
    empty |= {"timings": 0, "connects_s": 0, "notes": []}
    assert actual == {**empty, **document["measurement"]}


@pytest.mark.parametrize(("tool", "name"), PAIRS)
def test_a_truncated_recording_is_rejected_or_means_the_same(tool: str, name: str) -> None:
    complete = recorded(tool, name)
    measurement = outcome(tool, complete)
    outcomes = [outcome(tool, part) for part in truncations(complete)]
    assert all(part is None or part == measurement for part in outcomes)
    assert None in outcomes or not complete.stdout


@pytest.mark.parametrize("tool", TOOLS)
@given(
    st.tuples(st.text(), st.text()),
    st.sampled_from([0, 0, 0, 1, 104, -9, None]),
    st.lists(st.text(), min_size=2, max_size=2),
)
def test_arbitrary_output_is_rejected(
    tool: str, streams: tuple[str, str], exit_code: int | None, contents: list[str]
) -> None:
    files = dict(zip(TOOLS[tool].OUTPUT_FILES, contents, strict=False))
    assert outcome(tool, Output(*streams, exit_code, files)) is None


@pytest.mark.parametrize(("tool", "name"), PAIRS)
def test_only_exit_code_0_is_accepted(tool: str, name: str) -> None:
    complete = recorded(tool, name)
    for exit_code in (1, -9, None):
        assert outcome(tool, replace(complete, exit_code=exit_code)) is None


@pytest.mark.parametrize(
    "name", [name for tool, name in PAIRS if tool == "ab" and "error" not in expected(tool, name)]
)
def test_ab_measurements_agree_with_the_rows(name: str) -> None:
    """Computed from the -g file, in whole milliseconds."""
    output = recorded("ab", name)
    measurement = ab.AB.parse(output)
    totals_ms = [int(row.split("\t")[4]) for row in output.files["gnuplot.tsv"].splitlines()[1:]]
    assert measurement.requests == len(totals_ms)
    mean_s = sum(totals_ms) / len(totals_ms) / 1000
    assert measurement.response.mean == pytest.approx(mean_s, abs=5.1e-4)
    assert measurement.response.max == pytest.approx(max(totals_ms) / 1000, abs=5.1e-4)
    middle_ms = sorted(totals_ms)[(len(totals_ms) - 1) // 2 : len(totals_ms) // 2 + 1]
    median_s = sum(middle_ms) / len(middle_ms) / 1000
    assert measurement.response.p50 == pytest.approx(median_s, abs=5.1e-4)
    if len(totals_ms) > 1:
        p90_ms = quantiles(totals_ms, n=10, method="inclusive")[8]
        assert measurement.response.p90 == pytest.approx(p90_ms / 1000, abs=5.1e-4)
