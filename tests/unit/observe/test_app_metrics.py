"""Metrics that any app may publish: written by hand, read during the load, and in the result."""

from __future__ import annotations

import struct
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import cell_of, evidence, ns, with_observations
from workerlab.model.evidence import AppMetricsSample
from workerlab.observe import app_metrics
from workerlab.observe.app_metrics import read_metrics, sample_app_metrics

# The ten lines of the documentation, and a WSGI app around them
DOCUMENTED = str(app_metrics.__doc__).partition("Python:")[2].partition("Each worker")[0]
APP = f"""
import mmap, os, struct

{textwrap.dedent(DOCUMENTED).strip()}

def app(environ, start_response):
    sums[0] += 1
    sums[1] += 2
    sums[2] += 1
    sums[3] += 5_000_000
    start_response("200 OK", [])
    return [b"hello"]
"""


def test_the_metrics_of_a_small_app_are_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKERLAB_METRICS", str(tmp_path))
    names: dict[str, Any] = {}
    exec(APP, names)
    app, samples = names["app"], []
    for at_s in (2.0, 3.0, 4.0):
        app({}, lambda *_: None)
        samples.append(replace(sample_app_metrics(tmp_path), at_ns=ns(at_s)))
    assert samples[0].totals == {
        "requests": 2, "cart_asked": 2, "cart_hits": 1, "db_ns": 5_000_000
    }  # fmt: skip
    metrics = cell_of(with_observations(evidence(), app_metrics=tuple(samples))).app_metrics
    assert metrics.requests == 2
    assert metrics.per_request == {"cart_asked": 2.0, "cart_hits": 1.0}
    assert metrics.spent_s == {"db": pytest.approx(0.005)}
    assert metrics.hit_ratio == {"cart": 0.5}


def write_metrics(path: Path, sums: dict[str, int]) -> bytes:
    names = " ".join(sums).encode()
    names += b" " * (-len(names) % 8)
    numbers = struct.pack(f"={len(sums)}Q", *sums.values())
    data = b"METRICS1" + struct.pack("=Q", len(names)) + names + numbers
    path.write_bytes(data)
    return data


NAMES = st.from_regex(r"[a-z_]{1,20}", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(0, 2**64 - 1), max_size=20))
def test_any_file_of_this_format_is_read(
    tmp_path_factory: pytest.TempPathFactory, sums: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics-1.bin"
    write_metrics(path, sums)
    assert read_metrics(path) == sums


def test_a_damaged_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "metrics-1.bin"
    data = write_metrics(path, {"requests": 3, "db_ns": 4})
    damaged = [data[:cut] for cut in range(len(data))]
    damaged += [data + b"\0", b"LEDGERS1" + data[8:], data[:8] + b"\xff" * 8 + data[16:]]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"metrics-1\.bin does not hold app metrics"):
            read_metrics(path)


def test_the_sums_of_all_processes_are_added(tmp_path: Path) -> None:
    assert sample_app_metrics(tmp_path) is None
    write_metrics(tmp_path / "metrics-1.bin", {"requests": 3, "db_ns": 4})
    write_metrics(tmp_path / "metrics-2.bin", {"requests": 5, "cart_hits": 0})
    (tmp_path / "metrics-3.bin").touch()  # just created
    sample = sample_app_metrics(tmp_path)
    assert isinstance(sample, AppMetricsSample)
    assert sample.totals == {"requests": 8, "db_ns": 4, "cart_hits": 0}
