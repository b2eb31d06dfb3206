"""Validation against the JSON Schema that `workerlab schema` prints."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from workerlab.report.json import json_schema


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json_schema([kind]))


def validated(document: Any) -> Any:
    """Returns the document. Raises jsonschema.ValidationError."""
    validator(document["kind"]).validate(document)
    return document
