"""`workerlab schema`: all JSON output conforms to it, and nothing else does."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator, ValidationError

from tests.builders.any_document import documents, reports
from tests.builders.runs import NAMES, recorded
from tests.builders.schema import validated, validator
from tests.builders.sweep import everything
from workerlab.cli import main
from workerlab.experiments import EXPERIMENTS
from workerlab.experiments.results import document_of
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model import Document
from workerlab.report import FORMATS
from workerlab.run_store import load

GOLDENS = Path(__file__).parents[2] / "data" / "goldens"
JSON = sorted(GOLDENS.rglob("*.json"))
# Paths of the objects with fixed keys, by document
CLOSED: dict[str, list[tuple[str | int, ...]]] = {
    "everything": [
        (),
        ("cells", 0),
        ("cells", 0, "served_by"),
        ("cells", 0, "in_force"),
        ("cells", 0, "response_ms"),
        ("cells", 0, "waiting_split_ms"),
        ("cells", 0, "kernel"),
        ("cells", 0, "cpu"),
        ("cells", 0, "core_wait"),
        ("cells", 0, "rss_bytes"),
        ("cells", 0, "reason"),
        ("classes", 0),
        ("findings", 0),
        ("findings", 0, "answer"),
    ],
    "ladder": [
        (),
        ("tables", 0),
        ("tables", 0, "columns", 0),
        ("charts", 0),
        ("charts", 0, "series", 0),
    ],
}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def text_of(name: str) -> str:
    if name == "everything":
        return FORMATS["json"](everything())
    return (GOLDENS / f"{name}.json").read_text(encoding="utf-8")


def closed(name: str) -> Any:
    """The document of that name in `CLOSED`, with only the first item of each list."""
    document = json.loads(text_of(name))
    for value in document.values():
        if isinstance(value, list):
            del value[1:]
    return document


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.stem)
def test_goldens_conform(path: Path) -> None:
    validated(read(path))


def test_a_sweep_with_everything_conforms() -> None:
    validated(json.loads(text_of("everything")))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_runs_conform(name: str) -> None:
    if load(recorded(name)).plan.kind in EXPERIMENTS:
        validated(json.loads(FORMATS["json"](document_of(recorded(name)))))


@settings(max_examples=30)
@given(reports.map(sweep_document) | documents)
def test_any_document_conforms(document: Document) -> None:
    validated(json.loads(FORMATS["json"](document)))


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name, paths in CLOSED.items() for path in paths], ids=str
)
def test_a_missing_or_new_key_is_rejected(name: str, path: tuple[str | int, ...]) -> None:
    document = closed(name)
    schema = validator(document["kind"])
    part = document
    for step in path:
        part = part[step]
    for key in list(part):
        value = part.pop(key)
        assert not schema.is_valid(document), f"without {key}"
        part[key] = value
    assert schema.is_valid(document)
    part["new"] = None
    assert not schema.is_valid(document)


def test_a_value_of_another_type_is_rejected() -> None:
    document = closed("everything")
    document["cells"][0]["throughput_rps"] = "4 req/s"
    with pytest.raises(ValidationError, match="4 req/s"):
        validated(document)


def test_the_schema_of_all_commands_distinguishes_them_by_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    validator_of_all = Draft202012Validator(schema)
    for path in JSON:
        document = read(path)
        assert validator_of_all.is_valid(document)
        assert not validator_of_all.is_valid({**document, "kind": "unknown"})


def test_the_schema_of_one_command_accepts_only_its_documents(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema", "advise"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    assert "JsonCell" not in schema["$defs"]
    fits = {path.stem for path in JSON if Draft202012Validator(schema).is_valid(read(path))}
    assert fits == {"advise"}


def test_the_schema_describes_columns_as_the_tables_do() -> None:
    cell = validator("sweep").schema["$defs"]["JsonCell"]["properties"]
    assert cell["bound_rps"]["description"] == "what connections or slots allow at best"
