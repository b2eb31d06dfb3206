"""Validation against the JSON Schema that `workerlab schema` prints."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from workerlab.experiments.schema import schema_of


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of([kind]))


def validated(document: Any) -> Any:
    """Returns the document. Raises jsonschema.ValidationError."""
    validator(document["kind"]).validate(document)
    return document
