"""Metrics that any app may publish: a file by hand, read while it is written, and in the result."""

from __future__ import annotations

import struct
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import evidence, ns
from workerlab.analysis import analyse
from workerlab.model import AppMetricsSample
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


def test_what_a_small_app_publishes_is_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKERLAB_METRICS", str(tmp_path))
    made: dict[str, object] = {}
    exec(APP, made)
    app, samples = made["app"], []
    assert callable(app)
    for at_s in (2.0, 3.0, 4.0):
        app({}, lambda *_: None)
        sample = sample_app_metrics(tmp_path)
        assert sample is not None
        samples.append(replace(sample, at_ns=ns(at_s)))
    assert samples[0].totals == {
        "requests": 2, "cart_asked": 2, "cart_hits": 1, "db_ns": 5_000_000
    }  # fmt: skip
    one = evidence()
    seen = replace(one.observations, app_metrics=tuple(samples))
    (cell,) = analyse("run", {}, [replace(one, observations=seen)]).cells
    found = cell.app_metrics
    assert found is not None
    assert found.requests == 2
    assert found.per_request == {"cart_asked": 2.0, "cart_hits": 1.0}
    assert found.spent_s == {"db": pytest.approx(0.005)}
    assert found.hit_ratio == {"cart": 0.5}


def test_a_directory_without_files_says_nothing(tmp_path: Path) -> None:
    assert sample_app_metrics(tmp_path) is None


names = st.from_regex(r"[a-z_]{1,20}", fullmatch=True)


def written(path: Path, sums: dict[str, int]) -> bytes:
    words = " ".join(sums).encode()
    words += b" " * (-len(words) % 8)
    numbers = struct.pack(f"={len(sums)}Q", *sums.values())
    data = b"METRICS1" + struct.pack("=Q", len(words)) + words + numbers
    path.write_bytes(data)
    return data


@given(st.dictionaries(names, st.integers(0, 2**64 - 1), max_size=20))
def test_every_file_of_this_format_is_read(
    tmp_path_factory: pytest.TempPathFactory, sums: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics-1.bin"
    written(path, sums)
    assert read_metrics(path) == sums


def test_a_file_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics-1.bin"
    data = written(path, {"requests": 3, "db_ns": 4})
    others = [data[:cut] for cut in range(len(data))]
    others += [data + b"\0", b"LEDGERS1" + data[8:], data[:8] + b"\xff" * 8 + data[16:]]
    for other in others:
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"metrics-1\.bin does not hold app metrics"):
            read_metrics(path)


def test_sums_of_all_processes_are_added_up(tmp_path: Path) -> None:
    written(tmp_path / "metrics-1.bin", {"requests": 3, "db_ns": 4})
    written(tmp_path / "metrics-2.bin", {"requests": 5, "cart_hits": 0})
    (tmp_path / "metrics-3.bin").touch()  # made a moment ago
    sample = sample_app_metrics(tmp_path)
    assert isinstance(sample, AppMetricsSample)
    assert sample.totals == {"requests": 8, "db_ns": 4, "cart_hits": 0}
