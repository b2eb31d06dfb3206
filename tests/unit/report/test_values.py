"""Sentences of findings, and headings of columns."""

from __future__ import annotations

import pytest

from tests.builders.analysis import result_of, sentence
from workerlab.analysis.verdict import FailedRequests
from workerlab.model.plan import Cell, Server, Trial
from workerlab.model.result import Column, Invalid
from workerlab.notes import FlagIgnored
from workerlab.report.values import figure_of, heading, table


def test_causes_of_failures_are_written_out() -> None:
    causes_by_name = {"non_2xx": 48, "reset": 2, "of_a_new_tool": 1}
    causes = "48 x status other than 2xx, 1 x of_a_new_tool, 2 x connection reset"
    assert str(FailedRequests(51, causes_by_name)) == f"51 requests failed ({causes})"


def test_an_ignored_flag_names_the_classes() -> None:
    ignored = FlagIgnored("--backlog", ("asgi", "uvicorn"))
    assert str(ignored) == "--backlog has no effect with asgi and uvicorn"


def test_a_column_has_its_heading_or_its_name() -> None:
    assert heading(Column("memory_bytes", "bytes")) == "memory"
    assert heading(Column("response_mean_s")) == "response mean s"
    assert heading(Column("tool", heading="load tool")) == "load tool"
    assert heading(Column("asked_rps")) == "asked req/s"
    assert heading(Column("host_memory_bytes")) == "host memory"


TRIAL = Trial(Cell(Server("sync", 4, 1, 2048, 1000), "fast", 8), 1)
INVALID = Invalid(TRIAL, "app", None, sentence("it died"))


def test_an_invalid_trial_has_empty_cells_for_figures() -> None:
    columns = [Column("verdict", "text"), Column("throughput_rps"), Column("p50", value="lone_s")]
    rows = table("Cells", columns, (result_of(TRIAL, throughput_rps=4.0), INVALID)).rows
    assert rows == (("saturated", 4.0, None), ("invalid", None, None))


def test_an_unknown_path_is_an_error_even_for_an_invalid_trial() -> None:
    assert figure_of(INVALID, "breakdown.response_s") is None
    for path in ("throughput", "trial.cell.rps"):
        with pytest.raises(AttributeError):
            figure_of(INVALID, path)
