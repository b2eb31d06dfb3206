"""The write-ups as data, and reproductions from existing runs."""

from __future__ import annotations

import importlib
import pkgutil
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import workerlab
from tests.builders.runs import recorded
from workerlab.analysis.facts import TrialData
from workerlab.cli import main, parse
from workerlab.experiments.generators.usage import GeneratorUsage, usage_of
from workerlab.experiments.reading import document_of
from workerlab.experiments.reproduce import claims
from workerlab.experiments.reproduce.command import overview
from workerlab.experiments.reproduce.document import matching_cells
from workerlab.finding import Finding
from workerlab.numbers.units import value_at
from workerlab.report import FORMATS
from workerlab.run_store import load

WRITE_UPS = claims.write_ups()


def subclass_names(kind: type) -> set[str]:
    return {name for sub in kind.__subclasses__() for name in (sub.__name__, *subclass_names(sub))}


def figures_of(test: claims.ClaimTest) -> list[str]:
    return [*(test.ratio or ()), *filter(None, (test.value, test.over))]


def test_each_claim_is_listed_once_and_looks_for_conclusions_that_exist() -> None:
    for module in pkgutil.walk_packages(workerlab.__path__, "workerlab."):
        if module.name.startswith(("workerlab.analysis.", "workerlab.experiments.")):
            importlib.import_module(module.name)
    listed = [claim for writeup in WRITE_UPS.values() for claim in writeup.claim]
    assert [claim.number for claim in listed] == list(range(1, 49))
    tests = [test for claim in listed for test in claim.tests]
    codes = {code for test in tests for code in (*test.shows, *test.lacks)}
    assert codes
    assert codes <= subclass_names(Finding)


@pytest.mark.parametrize("writeup", WRITE_UPS.values(), ids=list(WRITE_UPS))
def test_figures_are_of_cells_that_a_part_measures(writeup: claims.WriteUp) -> None:
    parts = {part.name for part in writeup.part}
    assert {marks["part"] for marks in writeup.cells.values()} <= parts
    used: set[str] = {row.cell for table in writeup.table for row in table.rows}
    for claim in writeup.claim:
        assert claim.tests, claim.number
        for test in claim.all_tests:
            figures = figures_of(test)
            assert bool(figures) != bool(test.part), test
            assert test.part is None or (test.part in parts and test.shows)
            assert (test.original is None) or not test.part
            used |= {figure.partition(".")[0] for figure in figures}
    assert used == set(writeup.cells)
    for table in writeup.table:
        assert {len(row.then) for row in table.rows} == {len(table.headings)}
        assert not table.chart or table.chart in {heading.name for heading in table.headings}


@pytest.mark.parametrize("command", ["generators", "limits"])
def test_each_figure_is_a_value_of_a_result(command: str) -> None:
    cells = claims.measured_cells(load(recorded(command)))
    result = next(result for cell in cells for result in cell.results)
    for writeup in WRITE_UPS.values():
        parts = {part.name for part in writeup.part if part.command.startswith(command)}
        tests = [test for claim in writeup.claim for test in claim.all_tests]
        for figure in (figure for test in tests for figure in figures_of(test)):
            name, _, path = figure.partition(".")
            if writeup.cells[name]["part"] in parts:
                value_at(result, path)  # must not raise AttributeError


SYNC_4: dict[str, Any] = {
    "worker_class": "sync", "users": 4, "tool": "ab", "keepalive": False, "workers": 4,
    "sleep_s": 1.0,
}  # fmt: skip
PROCESSES_20: dict[str, Any] = {
    "tool": "processes", "connections": 20, "low": False, "keepalive": True, "delay_s": 0.08,
}  # fmt: skip


@pytest.mark.parametrize(
    ("writeup", "part", "settings", "cell"),
    [
        ("ab", "classes", SYNC_4, "sync4"),
        ("ab", "classes", SYNC_4 | {"sleep_s": 0.1}, None),
        ("ab", "classes", SYNC_4 | {"keepalive": True}, None),
        ("ab", "classes", SYNC_4 | {"tool": "wrk"}, None),
        ("generators", "processes", PROCESSES_20, "processes20"),
        ("generators", "processes", PROCESSES_20 | {"tool": "ab"}, None),
        ("generators", "processes", PROCESSES_20 | {"delay_s": 0.0}, None),
    ],
)
def test_a_run_with_other_settings_does_not_count_as_a_part(
    writeup: str, part: str, settings: dict[str, Any], cell: str | None
) -> None:
    matches = matching_cells(WRITE_UPS[writeup], {part: [claims.MeasuredCell(settings, ())]})
    assert [name for name, _ in matches] == ([cell] if cell else [])


def test_an_unreliable_load_of_a_generator_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubted(data: TrialData) -> GeneratorUsage | None:
        usage = usage_of(data)
        return usage and replace(usage, doubt="100 requests failed")

    monkeypatch.setattr(claims, "usage_of", doubted)
    assert not any(cell.results for cell in claims.measured_cells(load(recorded("generators"))))


@pytest.mark.parametrize("writeup", WRITE_UPS.values(), ids=list(WRITE_UPS))
def test_parts_are_commands_and_claims_are_of_the_original(writeup: claims.WriteUp) -> None:
    for part in writeup.part:
        full, quick = (parse(shlex.split(command)) for command in (part.command, part.quick))
        assert full.command == quick.command
        assert part.takes_s[1] <= part.takes_s[0]
    for claim in writeup.claim:
        for test in claim.tests:
            low, high = test.between
            assert test.original is None or low <= test.original <= high, test.says
        assert claim.instead is None or (claim.instead.tests and claim.instead.why), claim.number


def claim_of(writeup: str, number: int) -> claims.Claim:
    (match,) = (claim for claim in WRITE_UPS[writeup].claim if claim.number == number)
    return match


PYTHON_FILLS = {"rps": 25_000.0, "host_busy": 1.0, "cpu_per_request_s": 64e-6}
CLIENT_CPU = {"generator_cores": 0.6, "server_cores": 0.2}


@pytest.mark.parametrize(
    ("writeup", "number", "cells", "verdict"),
    [
        ("generators", 15, {"fast_both": PYTHON_FILLS,
         "wrk": {"rps": 53_000.0, "cpu_per_request_s": 6e-6}}, claims.ClaimCorrected),
        ("generators", 15, {"fast_both": PYTHON_FILLS,
         "wrk": {"rps": 25_000.0, "cpu_per_request_s": 60e-6}}, claims.ClaimHeld),
        ("generators", 15, {"fast_both": PYTHON_FILLS}, claims.ClaimNotShown),
        ("million", 35, {"aiohttp100000": {"failed": 0, "usage": CLIENT_CPU},
         "time_wait": {"errors": {"no_address": 1801}}, "time_wait_reuse": {"failed": 0}},
         claims.ClaimCorrected),
        ("million", 35, {"aiohttp100000": {"failed": 900, "usage": CLIENT_CPU}}, claims.ClaimHeld),
        ("million", 35, {"aiohttp100000": {"failed": 0, "usage": CLIENT_CPU}},
         claims.ClaimNotShown),
    ],
)  # fmt: skip
def test_verdicts_follow_from_figures(
    writeup: str, number: int, cells: dict[str, dict[str, Any]], verdict: type
) -> None:
    """From three launches with the same figures."""
    launches = {name: claims.MeasuredCell({}, (figures,) * 3) for name, figures in cells.items()}
    parts = {name: marks["part"] for name, marks in WRITE_UPS[writeup].cells.items()}
    measured = claims.MeasuredParts(cells=launches, conclusions={}, missing={}, parts=parts)
    assert type(claims.judge(claim_of(writeup, number), measured)) is verdict


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [({"LimitsOfSteps", "CpuLimit"}, claims.ClaimHeld),
     ({"LimitsOfSteps", "CpuLimit", "UnknownLimit"}, claims.ClaimNotShown)],
)  # fmt: skip
def test_a_step_with_an_unknown_limit_leaves_the_claim_not_shown(
    codes: set[str], verdict: type
) -> None:
    measured = claims.MeasuredParts(cells={}, conclusions={"steps": codes}, missing={}, parts={})
    assert type(claims.judge(claim_of("ladder", 47), measured)) is verdict


def test_the_write_ups_are_listed_if_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert out.strip() == overview().strip()
    assert all(f"\n{name} " in out for name in WRITE_UPS)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nothing"], "no write-up 'nothing': name ab, generators, locust, million, ladder or all"),
        (["million", "--from", "bottleneck"], "has no cell that million needs"),
        (["million", "--from", "settings"], "has no cell that million needs"),
        (["million", "--from", "not-there"], "is not a run"),
    ],
)
def test_invalid_arguments_start_nothing(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: str(recorded(name)) for name in ("bottleneck", "settings")}
    argv = ["reproduce", *(runs.get(word, word) for word in arguments), "--out", str(tmp_path)]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
    assert not list(tmp_path.iterdir())


def test_an_existing_run_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    existing_run = str(recorded("limits"))
    assert main(["reproduce", "million", "--from", existing_run, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "31. 100 requests take a synchronous client" in out
    for cell in ("sync100", "dropped5000"):
        assert f"Not shown: the cell {cell} was not measured" in out
    assert "Held: requests that the server saw: 0" in out
    (run,) = tmp_path.iterdir()
    assert not (run / "parts").exists()
    document = document_of(run)
    codes = [finding.code for finding in document.findings]
    assert codes[0] == "ClaimCounts"
    assert set(codes[1:]) <= {"ClaimHeld", "ClaimCorrected", "ClaimNotShown"}
    assert len(codes) == 1 + len(WRITE_UPS["million"].claim)
    assert all(FORMATS[name](document) for name in FORMATS)
