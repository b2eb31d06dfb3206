"""`workerlab schema`: JSON that differs from it is rejected. test_formats validates all output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.builders.schema import validated, validator
from tests.builders.sweep import everything
from workerlab.cli import main
from workerlab.report import FORMATS
from workerlab.report.keys import JsonSettings
from workerlab.report.values import SETTINGS

GOLDENS = Path(__file__).parents[2] / "data" / "goldens"
JSON = sorted(GOLDENS.rglob("*.json"))
# Keys of objects whose own keys are free
FREE = {"values", "environment", "setup_s", "errors", "statuses", "routes", "rows",
        "requests_per_worker", "connections_per_worker"}  # fmt: skip


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def everything_in_json() -> str:
    return FORMATS["json"](everything())


def shortened(text: str) -> Any:
    """The document with only the first item of each list."""
    document = json.loads(text)
    for value in document.values():
        if isinstance(value, list):
            del value[1:]
    return document


def objects(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The path and the value of each object whose keys are fixed."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in tuple(value.items()):
            if key not in FREE:
                yield from objects(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, f"{path}/{index}")


@pytest.mark.parametrize("name", ["everything", "ladder"])
def test_a_missing_or_new_key_is_rejected(name: str) -> None:
    golden = GOLDENS / f"{name}.json"
    document = shortened(golden.read_text("utf-8") if golden.exists() else everything_in_json())
    schema = validator(document["kind"])
    assert schema.is_valid(document)
    for path, fixed in objects(document):
        for key in list(fixed):
            value = fixed.pop(key)
            assert not schema.is_valid(document), f"{path} without {key}"
            fixed[key] = value
        fixed["new"] = None
        assert not schema.is_valid(document), f"{path} with another key"
        del fixed["new"]


def test_a_value_of_another_type_is_rejected() -> None:
    document = shortened(everything_in_json())
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
    assert cell["bound_rps"]["description"] == "the most that connections and slots allow"


def test_each_setting_that_a_table_shows_is_a_key() -> None:
    """Tables take headings and forms from the keys; a missing key would fail a measured run."""
    assert SETTINGS.keys() <= set(JsonSettings.__struct_fields__)
