"""Versions of Gunicorn as an axis: the lab's configuration files and probe work with 23 to 27.
All other tests use 25.3."""

from __future__ import annotations

from tests.builders.versions import VERSIONS
from tests.integration.conftest import Lab

OTHERS = (*VERSIONS[:2], *VERSIONS[3:])
MISSING = {"eventlet": OTHERS[2:], "asgi": OTHERS[:1]}


def test_each_version_serves_the_classes_it_has(lab: Lab, worker_class: str) -> None:
    missing = MISSING.get(worker_class, ())
    report = lab.report(
        *("sweep", worker_class, "3", "--gunicorn", ",".join(OTHERS), "--tool", "fast"),
        *("--workers", "1", "--sleep", "0.05", "--rounds", "3"),
        code=3 if missing else 0,
        downloads=True,
    )
    cells = {cell["gunicorn"]: cell for cell in report["cells"]}
    assert tuple(cells) == OTHERS
    for version, cell in cells.items():
        if version in missing:
            assert (cell["verdict"], cell["served_by"]["gunicorn"]) == ("invalid", None)
            assert f"Gunicorn {version} has no worker class {worker_class}" in lab.last.err
            continue
        assert cell["served_by"]["gunicorn"] == version
        assert (cell["failed"], cell["requests"]) == (0, 10)
    proven = [record["proof"]["gunicorn"] for record in lab.records() if record["proof"]]
    # Cells run side by side and are recorded as they end
    assert sorted(proven) == [version for version in OTHERS if version not in missing]
