from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workerlab.errors import ParseError, UsageError
from workerlab.load import ab
from workerlab.model.evidence import AbReport, AbTimes, Output
from workerlab.model.plan import Load

URL = "http://127.0.0.1:8000/"

REPORT = """\
This is ApacheBench, Version 2.3 <$Revision$>

Benchmarking 127.0.0.1 (be patient).....done


Server Software:        gunicorn
Server Hostname:        127.0.0.1
Server Port:            8000

Document Path:          /
Document Length:        Variable

Concurrency Level:      2
Time taken for tests:   0.300 seconds
Complete requests:      5
Failed requests:        0
Total transferred:      745 bytes
HTML transferred:       45 bytes
Requests per second:    16.67 [#/sec] (mean)
Time per request:       120.000 [ms] (mean)
Time per request:       60.000 [ms] (mean, across all concurrent requests)
Transfer rate:          2.43 [Kbytes/sec] received

Connection Times (ms)
              min  mean[+/-sd] median   max
Connect:        0    0   0.0      0       0
Processing:   100  104   5.0    102     112
Waiting:      100  104   5.0    102     112
Total:        100  104   5.0    102     112

Percentage of the requests served within a certain time (ms)
  50%    102
 100%    112 (longest request)
"""
TOTALS_US = (100_000, 101_250, 102_000, 104_500, 112_000)
TOTAL_ROW = "Total:        100  104   5.0    102     112"


def milliseconds(us: int) -> int:
    return (us + 500) // 1000


def rows(
    totals_us: tuple[int, ...] = TOTALS_US, starts: tuple[int, ...] = (10, 11, 11, 12, 12)
) -> str:
    lines = [
        "\t".join(["Fri Nov 20 20:06:03 2026", str(start), "0", *[str(milliseconds(us))] * 3])
        for us, start in zip(totals_us, starts, strict=True)
    ]
    return "\n".join([ab.ROWS_HEADER, *lines, ""])


def percentiles(totals_us: tuple[int, ...] = TOTALS_US, past_the_end: str = "0.257") -> str:
    """As ab writes it, including values from beyond the end of its array."""
    n, lines = len(totals_us), [ab.PERCENTILES_HEADER]
    for percent in range(101):
        rank = n - 1 if percent == 100 else int(0.5 + n * percent / 100)
        figure = f"{totals_us[rank] / 1000:.3f}" if rank < n else past_the_end
        lines.append(f"{percent},{figure}")
    return "\n".join([*lines, ""])


ROWS, PERCENTILES = rows(), percentiles()


def output(
    stdout: str = REPORT, *, row_file: str = ROWS, percentile_file: str = PERCENTILES
) -> Output:
    files = {ab.ROWS_FILE: row_file, ab.PERCENTILES_FILE: percentile_file}
    return Output(stdout=stdout, files=files)


def with_lines(added: str, failed: int = 0) -> str:
    """The report with these lines after the number of failed requests."""
    line = "Failed requests:        "
    return REPORT.replace(f"{line}0\n", f"{line}{failed}\n{added}\n")


# --- the command --------------------------------------------------------------------------


def load(**changes: object) -> Load:
    plain = Load(concurrency=4, requests=21, duration_s=5.0, deadline_s=30.2)
    return replace(plain, **changes)  # type: ignore[arg-type]


def argv_of(**changes: object) -> list[str]:
    return list(ab.AB.command(load(**changes), URL, "/run/x").argv)


def test_the_command_of_a_plain_load() -> None:
    assert argv_of() == [
        *("ab", "-l", "-q", "-n", "21", "-c", "4", "-s", "31"),
        *("-g", "/run/x/gnuplot.tsv", "-e", "/run/x/percentiles.csv"),
        URL,
    ]


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({"method": "HEAD"}, ["-i"]),
        ({"method": "DELETE"}, ["-m", "DELETE"]),
        ({"method": "POST"}, ["-m", "POST"]),
        ({"method": "POST", "body_file": "/b"}, ["-p", "/b", "-T", "application/octet-stream"]),
        ({"method": "PUT", "body_file": "/b"}, ["-u", "/b", "-T", "application/octet-stream"]),
        (
            {"method": "PATCH", "body_file": "/b", "headers": (("content-type", "a/b"),)},
            ["-p", "/b", "-T", "a/b", "-m", "PATCH"],
        ),
        ({"headers": (("X-A", "1"), ("X-A", "2"))}, ["-H", "X-A: 1", "-H", "X-A: 2"]),
    ],
)
def test_the_command_for_other_requests(changes: dict[str, object], added: list[str]) -> None:
    assert argv_of(**changes) == [*argv_of()[:-1], *added, URL]


def test_dash_k_keeps_connections_alive() -> None:
    assert "-k" not in argv_of(method="POST", body_file="/b")
    keepalive_argv = argv_of(keepalive=True)
    assert [argument for argument in keepalive_argv if argument != "-k"] == argv_of()
    assert keepalive_argv.count("-k") == 1


@pytest.mark.parametrize(
    ("report", "connects_s"),
    [
        (REPORT, (0,) * 5),
        (with_lines("Keep-Alive requests:    0"), (0,) * 5),
        (with_lines("Keep-Alive requests:    4"), ()),
    ],
)
def test_no_connect_times_if_connections_were_kept(
    report: str, connects_s: tuple[int, ...]
) -> None:
    """ab reports 0 ms for a request on a kept connection, as for one that connected at once."""
    measurement = ab.AB.parse(output(report))
    assert measurement.connects_s == connects_s
    assert measurement.connect.mean == (0 if connects_s else None)
    assert measurement.first_byte.mean is not None


@pytest.mark.parametrize(
    "changes", [{"concurrency": 0}, {"concurrency": 20_001, "requests": 30_000}, {"requests": 3}]
)
def test_a_load_that_ab_would_refuse_is_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ab.AB.check(load(**changes))

    ab.AB.check(load(concurrency=20_000, requests=20_000))


# --- the report ---------------------------------------------------------------------------


def test_the_figures_are_exact_to_the_microsecond() -> None:
    measurement = ab.AB.parse(output())
    assert (measurement.requests, measurement.failed, measurement.errors) == (5, 0, {})
    assert (measurement.duration_s, measurement.rps) == (0.3, 16.67)
    assert measurement.response.mean == pytest.approx(sum(TOTALS_US) / 5e6)
    assert (measurement.response.p50, measurement.response.max) == (0.102, 0.112)


def test_the_first_request_is_lone_if_it_alone_starts_in_its_second_and_none_failed() -> None:
    assert ab.AB.parse(output()).lone_s == 0.1
    assert ab.AB.parse(output(row_file=rows(starts=(10, 10, 11, 11, 11)))).lone_s is None
    assert ab.AB.parse(output(with_lines("Non-2xx responses:      1"))).lone_s is None


@pytest.mark.parametrize("value", ["0.000", "0.257", "-14.001", "99999999999999.999"])
def test_percentiles_beyond_the_array_are_ignored(value: str) -> None:
    text = percentiles(past_the_end=value)
    assert text.count(f",{value}\n") == 10  # 90 to 99 % of 5 requests
    assert ab.AB.parse(output(percentile_file=text)) == ab.AB.parse(output())


@pytest.mark.parametrize(
    "added",
    [
        "Total of 5 requests completed",
        "SSL/TLS Protocol:       TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256",
        "TLS Server Name:        localhost",
        "Total body sent:        1720",
        "Keep-Alive requests:    0",
        "Number of workers:      1\nConcurrency achieved:   2\nRampup delay:           0 [ms]",
        "WARNING: The median and mean for the total time are not within a normal deviation\n"
        "        These results are probably not that reliable.",
        "ERROR: The median and mean for the total time are more than twice the standard\n"
        "       deviation apart. These results are NOT reliable.",
    ],
)
def test_lines_of_other_versions_and_modes_are_ignored(added: str) -> None:
    assert ab.AB.parse(output(with_lines(added))) == ab.AB.parse(output())


def test_the_table_printed_with_dash_s_has_no_sd_and_no_median() -> None:
    text = REPORT.replace(TOTAL_ROW, "Total:        100   104  112")
    short, usual = ab.AB.parse(output(text)), ab.AB.parse(output())
    assert replace(short, ab=None) == replace(usual, ab=None)
    assert short.ab.times["total"] == replace(usual.ab.times["total"], sd=None, median=None)


def test_the_figures_that_ab_prints() -> None:
    times = AbTimes(0.1, 0.104, 0.005, 0.102, 0.112)
    figures = (2, 5, 0.3, 0.12, 0.06, pytest.approx(2.43 * 1024), 745, 45)
    assert ab.AB.parse(output()).ab == AbReport(
        *figures,
        {
            "connect": AbTimes(0, 0, 0, 0, 0),
            **dict.fromkeys(("processing", "waiting", "total"), times),
        },
    )


def test_a_run_that_took_no_time_has_no_rates() -> None:
    labels = ("Requests per", "Time per", "Transfer rate")
    lines = [line for line in REPORT.splitlines() if not line.startswith(labels)]
    text = "\n".join([*lines, ""])
    report = ab.AB.parse(output(text.replace("0.300 seconds", "0.000 seconds"))).ab
    assert report.time_per_request_s is report.transfer_rate_bytes_per_s is None


def causes(connect: int = 0, receive: int = 0, length: int = 0, exceptions: int = 0) -> str:
    return (
        f"   (Connect: {connect}, Receive: {receive}, Length: {length}, Exceptions: {exceptions})"
    )


@pytest.mark.parametrize(
    ("failed_requests", "added", "errors", "failed"),
    [
        (0, "Non-2xx responses:      2", {"non_2xx": 2}, 2),
        (0, "Write errors:           1", {"write": 1}, 1),
        (3, causes(connect=1, length=2), {"connect": 1, "length": 2}, 3),
        (2, "   (Connect: 0, Length: 2, Exceptions: 0)", {"length": 2}, 2),
        # ab counts a reset as two events
        (4, causes(receive=2, exceptions=2), {"read": 2, "exception": 2}, 2),
        # A response may be both too long and a 500, but there are never more failures than requests
        (5, f"{causes(length=5)}\nNon-2xx responses:      5", {"length": 5, "non_2xx": 5}, 5),
        (
            9,
            f"{causes(connect=2, length=5)}\nNon-2xx responses:      5",
            {"connect": 2, "length": 5, "other": 2, "non_2xx": 5},
            7,
        ),
    ],
)
def test_failures_by_cause(
    failed_requests: int, added: str, errors: dict[str, int], failed: int
) -> None:
    measurement = ab.AB.parse(output(with_lines(added, failed_requests)))
    assert (measurement.errors, measurement.failed) == (errors, failed)


def test_a_first_byte_after_the_end_is_noted() -> None:
    text = ROWS.replace("\t112\t112\t112\n", "\t112\t112\t140\n")
    assert ab.AB.parse(output(row_file=text)).notes == (ab.FirstByteAfterEnd(1),)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Total transferred:      745", "Total transferred:      0"),
        ("Complete requests:      5", "Complete requests:      0"),
        ("Complete requests:      5", "Complete requests:      6"),
        ("Complete requests:      5", "Complete requests:      many"),
        ("Failed requests:        0", "Failed requests:        1"),
        ("Failed requests:        0", "Failed requests:        0\nKeep-Alive requests:    some"),
        ("16.67 [#/sec]", "18.67 [#/sec]"),
        ("16.67 [#/sec] (mean)", "16.67 [#/sec]"),
        ("Requests per second:    16.67 [#/sec] (mean)\n", ""),
        ("Time per request:       120.000 [ms] (mean)\n", ""),
        ("Transfer rate:          2.43 [Kbytes/sec] received", "Transfer rate: much"),
        ("Concurrency Level:      2\n", ""),
        ("HTML transferred:       45 bytes\n", ""),
        ("Waiting:      100  104   5.0    102     112", "Waiting:      100"),
        (TOTAL_ROW, "Total:        100  104   5.0    102     113"),
        (TOTAL_ROW, "Total:        100  109   5.0    102     112"),
        ("Server Port:            8000", "Complete requests:      5"),
    ],
)
def test_an_inconsistent_report_is_rejected(old: str, new: str) -> None:
    assert REPORT.count(old) == 1
    with pytest.raises(ParseError):
        ab.AB.parse(output(REPORT.replace(old, new)))


@pytest.mark.parametrize(
    "changes",
    [
        {"row_file": ROWS.replace("\t102\t102\t102", "\t103\t103\t103")},
        {"row_file": ROWS.replace("\t102\t102\t102", "\t90\t102\t102")},
        {"row_file": ROWS.replace("\t102\t102\t102", "\t102\t102")},
        {"row_file": rows((100_000, 102_000, 101_250, 104_500, 112_000))},
        {"row_file": ROWS.replace("seconds", "minutes")},
        {"row_file": ROWS[:-1]},
        {"percentile_file": PERCENTILES[:-1]},
        {"percentile_file": PERCENTILES.replace("40,102.000", "40,102.001")},
        {"percentile_file": PERCENTILES.replace("40,102.000\n", "")},
        {"percentile_file": PERCENTILES.replace("100,112.000\n", "")},
    ],
)
def test_inconsistent_files_are_rejected(changes: dict[str, str]) -> None:
    with pytest.raises(ParseError):
        ab.AB.parse(output(**changes))


@pytest.mark.parametrize(
    ("exit_code", "stderr", "why"),
    [
        (104, "apr_socket_recv: Connection reset by peer (104)", "reset"),
        (54, "apr_socket_recv: Connection reset by peer (54)", "reset"),
        (111, "\nTest aborted after 10 failures\n\napr_socket_connect(): Refused (111)", "refused"),
        (119, "apr_pollset_poll: The timeout specified has expired (70007)", "timeout"),
        (24, "socket: Too many open files (24)", "ulimit"),
        (99, "apr_socket_connect(): Cannot assign requested address (99)", "no free local port"),
        (113, "apr_socket_connect(): No route to host (113)", "network"),
        (22, "ab: Invalid Concurrency\nUsage: ab", "arguments"),
        (-9, "", "signal 9"),
        (None, "", "did not exit"),
        (7, "", "exit code 7"),
    ],
)
def test_an_aborted_run_has_a_reason(exit_code: int | None, stderr: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        ab.AB.parse(Output(stdout="", stderr=stderr, exit_code=exit_code))


@given(st.lists(st.integers(0, 90_000_000), min_size=101, max_size=700))
def test_every_total_of_a_large_sample_rounds_to_its_row(us: list[int]) -> None:
    """Each percentile is exact."""
    totals_us = tuple(sorted(us))
    lines = percentiles(totals_us).splitlines()[1:]
    figures = [int(line.partition(",")[2].replace(".", "")) for line in lines]
    filled = ab._exact_totals([milliseconds(t) for t in totals_us], figures)
    assert filled == sorted(filled)
    assert all(abs(ms - t / 1000) <= 1.0 for ms, t in zip(filled, totals_us, strict=True))
    assert [milliseconds(round(ms * 1000)) for ms in filled] == [milliseconds(t) for t in totals_us]
    for percent in range(100):
        rank = int(0.5 + len(totals_us) * percent / 100)
        assert filled[rank] == totals_us[rank] / 1000


@given(st.data())
def test_a_replaced_line_is_rejected_or_harmless(data: st.DataObject) -> None:
    """Any line replaced by another: ParseError, or the same measurement but for failures."""
    lines = REPORT.splitlines()
    index = data.draw(st.integers(0, len(lines) - 1))
    lines[index] = data.draw(st.text(max_size=60) | st.sampled_from(lines))
    try:
        measurement = ab.AB.parse(output("\n".join([*lines, ""])))
    except ParseError:
        return
    assert replace(measurement, errors={}, failed=0, lone_s=0.1) == ab.AB.parse(output())
