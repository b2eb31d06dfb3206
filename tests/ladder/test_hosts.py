"""`workerlab ladder` with the load from other hosts, which are network namespaces here."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Lab, fake_program
from tests.integration.generators.test_locust_hosts import RESULT_FILE, Host, reported
from tests.integration.generators.test_locust_hosts import hosts as hosts


def test_a_ladder_with_the_load_from_another_host(
    hosts: dict[str, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blog and the load tool run on different cores. Redis is unavailable: it would only add a
    step. `test_locust_hosts` tests two sending hosts."""
    cores = (os.cpu_count() or 1) > 1 and shutil.which("taskset") is not None
    sender = hosts["one"]
    argv = ["ladder", "--storages", "sqlite", "--workers", "1", "--users", "8", "--trials", "1"]
    argv += ["--duration", "1", "--load-hosts", sender.address, "--format", "json"]
    with fake_program(tmp_path, "redis-server", "#!/bin/sh\nexit 1\n") as fakes:
        monkeypatch.setenv("PATH", f"{fakes}{os.pathsep}{os.environ['PATH']}")
        report = reported(hosts["master"], [sender], argv, tmp_path, cores=cores)
    assert any("A single user is not measured" in note["text"] for note in report["notes"])
    rates = [row for table in report["tables"] for row in table["rows"] if "factor" in row]
    assert len(rates) == 3
    assert all(row["failed"] == 0 for row in rates)
    results = list(tmp_path.rglob(f"raw/*/tool/{RESULT_FILE}"))
    assert len(results) == len(rates)
    for result in results:
        parts = json.loads(result.read_text())["parts"]
        assert len(parts) == 1
        assert "local" not in parts


def test_load_hosts_require_a_tool_that_supports_them(tmp_path: Path) -> None:
    line = Lab(tmp_path).refusal("ladder", "--tools", "fast", "--load-hosts", "127.0.0.1")
    assert line.endswith("--load-hosts needs locust-fast or locust (--tools)")
