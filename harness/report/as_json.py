"""JSON, schema 1. All keys always; null for unknown and for unlimited; never NaN or Infinity."""

from __future__ import annotations

import json

from harness.report.document import SweepResult
from harness.report.values import document


def render(report: SweepResult) -> str:
    """One JSON document. Raises ValueError rather than write NaN."""
    return json.dumps(document(report), indent=2, allow_nan=False) + "\n"
