"""Versions of Gunicorn as an axis: the lab's own files and its probe work with all of 23 to 27."""

from __future__ import annotations

import pytest

from tests.builders.versions import VERSIONS
from tests.integration.conftest import Lab

MISSING = {"eventlet": VERSIONS[3:], "asgi": VERSIONS[:1]}


def test_every_version_serves(lab: Lab, worker_class: str) -> None:
    done = lab(
        "sweep", worker_class, "3", "--gunicorn", ",".join(VERSIONS), "--tool", "fast",
        "--workers", "1", "--sleep", "0.05", "--rounds", "3", "--format", "json",
    )  # fmt: skip
    if "does not answer" in done.err:
        pytest.skip("no package index, and not in the cache")
    missing = MISSING.get(worker_class, ())
    assert done.code == (3 if missing else 0), done.err
    cells = {cell["gunicorn"]: cell for cell in done.report["cells"]}
    assert tuple(cells) == VERSIONS
    for version, cell in cells.items():
        if version in missing:
            assert (cell["verdict"], cell["served_by"]["gunicorn"]) == ("invalid", None)
            assert f"Gunicorn {version} has no worker class {worker_class}" in done.err
            continue
        assert cell["served_by"]["gunicorn"] == version
        assert (cell["failed"], cell["requests"]) == (0, 10)
    proven = [record["proof"]["gunicorn"] for record in lab.records() if record["proof"]]
    # Side by side: on file as they end
    assert sorted(proven) == [version for version in VERSIONS if version not in missing]
