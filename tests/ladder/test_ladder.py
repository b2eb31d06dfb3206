"""`workerlab ladder` as a whole: with all services, without any, stopped and killed."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.builders.conditions import until
from tests.integration.conftest import Lab, processes, stood_still
from tests.integration.conftest import lab as lab
from workerlab.server import services

SMALL = ("--quick", "--users", "6", "--tools", "fast", "--duration", "0.5")
# The app's counters are read ten times a second, less often on a busy machine, and must be read
# twice in the steady part of a load
COUNTED = (*SMALL[:-1], "1.5")
ROUNDING_ERROR = 1e-5  # figures in JSON have six digits


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that the load tool is calibrated only once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def data_directory(lab: Lab, cache: Path) -> Iterator[Path]:
    """The data of the services; they must leave nothing there. PostgreSQL's own user needs access,
    which pytest revokes for its own directories whenever another session starts."""
    with tempfile.TemporaryDirectory(prefix="ladder-") as name:
        directory = Path(name)
        directory.chmod(0o777)
        lab.env |= {"TMPDIR": str(directory), "XDG_CACHE_HOME": str(cache)}
        yield directory
        until(lambda: not list(directory.glob("workerlab-*")), "the data of the services is gone")


@pytest.fixture
def without_programs(lab: Lab) -> None:
    """No program of any service is on PATH."""
    (lab.place / "empty").mkdir()
    lab.env["PATH"] = str(lab.place / "empty")


@pytest.fixture
def database(postgresql: str) -> str:
    """The URL of an empty database."""
    with psycopg.connect(postgresql, autocommit=True) as db:
        db.execute("DROP SCHEMA public CASCADE")
        db.execute("CREATE SCHEMA public")
    return postgresql


def rows(study: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """The rows of all tables that have this column."""
    return [row for table in study["tables"] for row in table["rows"] if column in row]


def skip_without(*kinds: str) -> None:
    for kind in kinds:
        if why := services.why_no_driver(kind) or services.why_unavailable(kind):
            pytest.skip(why)


def test_each_removed_cache_costs_a_round_trip(lab: Lab, stand_in: Path, database: str) -> None:
    """With a database and a Redis given by URL, which are left as they were, and a stand-in for
    MongoDB that is started, inspected and stopped like MongoDB's own server."""
    skip_without("redis")
    lab.env["PATH"] = f"{stand_in.parent}{os.pathsep}{lab.env['PATH']}"
    with services.service("redis") as redis:
        urls = ("--postgres-url", database, "--redis-url", redis.url)
        report = lab.report("ladder", *COUNTED, *urls)
        assert tables(database) == []
        assert database not in "".join(path.read_text() for path in lab.run.rglob("*.json"))
    counted = rows(report, "storage_trips")
    assert all(row["counted_requests"] for row in counted)
    assert [row["removed"] for row in counted] == [
        "nothing", "in-process cache", "Redis", "MongoDB-compatible server (for PostgreSQL)",
        "other workers", "async",
    ]  # fmt: skip
    all_caches, redis_only, *uncached = counted

    def in_flight(row: dict[str, Any]) -> float:
        """Trips per request of the six users that may have no answer yet at either end."""
        return 6 / row["counted_requests"] + ROUNDING_ERROR

    # A local copy expires after 1 s, a copy in Redis after 30 s
    lookups = all_caches["local_hit_ratio"] + all_caches["redis_trips"]
    assert lookups == pytest.approx(1, abs=in_flight(all_caches))
    assert all_caches["storage_trips"] * all_caches["counted_requests"] <= 2
    assert redis_only["redis_trips"] == pytest.approx(1, abs=in_flight(redis_only))
    # All users may find the expired copy before it is replaced
    assert redis_only["storage_trips"] * redis_only["counted_requests"] <= 6
    for row in uncached:
        assert row["redis_trips"] == 0
        assert row["storage_trips"] == pytest.approx(1, abs=in_flight(row))
    versions = report["environment"]["services"]
    assert versions.keys() == {"mongodb", "postgresql", "redis"}
    pattern = r"a server that claims to be MongoDB \S+ but is not, .* lab"
    assert re.fullmatch(pattern, versions["mongodb"])
    assert all(row["failed"] == 0 for row in rows(report, "throughput_rps"))
    cores = [row["storage_cores"] for row in rows(report, "storage_cores")]
    assert any(cores) or stood_still(lab.run)
    titles = (chart["title"].partition("Over time: ") for chart in report["charts"])
    over_time = {title.partition(";")[0] for start, _, title in titles if not start}
    assert {"responses", "memory"} <= over_time <= {"responses", "cores", "memory", "network"}
    assert {"cores", "network"} <= over_time or stood_still(lab.run)
    text = " ".join(lab("report", str(lab.run), "--explain").out.split())
    stand_in_names = r"MongoDB- ?compatible server|MongoDB: a server|claims to be MongoDB"
    other_text, count = re.subn(stand_in_names, "", text)
    assert count > 3
    assert "MongoDB" not in other_text


def tables(url: str) -> list[str]:
    with psycopg.connect(url) as db:
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        return sorted(name for (name,) in db.execute(query).fetchall())


def test_tables_of_another_app_are_left_alone(lab: Lab, database: str) -> None:
    with psycopg.connect(database) as db:
        db.execute("CREATE TABLE posts (mine text)")
    done = lab("ladder", *SMALL, "--storages", "postgresql", "--postgres-url", database)
    assert done.code == 3, done.err
    assert tables(database) == ["posts"]
    assert not (lab.place / "results").exists()


@pytest.mark.usefixtures("without_programs")
def test_a_ladder_on_sqlite_alone_is_stopped_and_resumed_with_more_launches(lab: Lab) -> None:
    """Its search for a limit ends at the first level, because no response takes less than 1 us,
    unless other programs use the cores."""
    lab.env["PYTHONSAFEPATH"] = "1"
    options = ("--storages", "sqlite", "--workers", "1", "--find-limit", "p95<1us")
    process = lab.at_work(
        *("ladder", *SMALL, *options),
        when=lambda: list(lab.place.glob("results/*/trials.jsonl")) and lab.records(),
        what="a first cell",
    )
    stopped = lab.end(process, signal.SIGINT)
    assert stopped.code == 130, stopped.err
    assert "ladder --resume" in stopped.err
    valid_keys = {record["key"] for record in lab.records() if not record["fault"]}
    resume = ("ladder", "--resume", str(lab.run))
    error = lab.refusal(*resume, "--trials", "1")
    assert "--trials must be greater than the run's 1" in error
    report = lab.report(*resume, "--trials", "2")
    all_keys = [record["key"] for record in lab.records()]
    assert all(all_keys.count(key) == 1 for key in valid_keys)
    assert report["environment"]["services"].keys() == {"sqlite"}
    assert "Redis is not installed here" in lab.last.out
    with_cache, *without = rows(report, "storage_trips")
    assert len(without) == 2
    for row in (with_cache, *without):
        if not (requests := row["counted_requests"]):
            assert stood_still(lab.run), "nothing was counted although the machine did not pause"
            continue
        assert row["redis_trips"] == 0
        trips = row["storage_trips"] * requests
        if row is with_cache:  # after a pause, all six users may find the copy expired
            assert trips <= 6 * 5
        else:  # at either end, six users may have made a trip and have no answer yet
            assert trips == pytest.approx(requests, abs=6 + ROUNDING_ERROR * requests)
    answers = [finding["answer"] for finding in report["findings"]]
    (answer,) = (answer for answer in answers if answer["code"] == "UsersServed")
    levels = [row["users"] for row in rows(report, "users")]
    broken = answer["values"]["outcome"]["code"] == "TargetBroken"
    assert levels[: 1 if broken else 4] == ([6] if broken else [6, 12, 24, 48][: len(levels)])
    assert {row["launches"] for row in rows(report, "factor")} == {2}


def test_a_killed_ladder_leaves_no_process(lab: Lab, data_directory: Path) -> None:
    skip_without("postgresql", "redis")
    process = lab.at_work("ladder", *SMALL, when=lab.loads, what="the first load is on")
    assert processes(str(data_directory))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not processes(str(data_directory)), "servers and storages are gone")


@pytest.mark.usefixtures("without_programs")
def test_a_page_that_differs_from_the_stored_post_makes_a_cell_invalid(
    lab: Lab, database: str
) -> None:
    """The post is edited during the load; Redis, which would hold the old one, is unavailable."""
    options = ("--storages", "postgresql", "--postgres-url", database, "--workers", "1")
    process = lab.at_work("ladder", *SMALL, *options, when=lab.loads, what="the first load is on")
    with psycopg.connect(database) as db:
        db.execute("UPDATE posts SET html = '<p>Other words</p>' WHERE id = 1")
    until(lambda: len(lab.records()) > 1, "two cells")
    lab.end(process, signal.SIGINT)
    study = lab("report", str(lab.run), "--format", "json").report
    assert study["valid"] is False
    assert any(
        "stored" in note["text"] for note in study["notes"] if note["code"] == "InvalidStepTrial"
    ), study["notes"]


def test_nothing_starts_if_a_given_service_does_not_respond(lab: Lab) -> None:
    done = lab("ladder", *SMALL, "--redis-url", "redis://:secret@127.0.0.1:1")
    assert done.code == 3
    assert "Redis at 127.0.0.1:1 does not respond" in done.err
    assert "secret" not in done.err
    assert not (lab.place / "results").exists()


@pytest.mark.parametrize(
    ("option", "url"),
    [
        ("--redis-url", "http://:secret@127.0.0.1"),
        ("--postgres-url", "postgresql://me:secret@[::1/blog"),
        ("--mongo-url", "mongodb://me:secret@127.0.0.1:port/blog"),
    ],
)
def test_a_malformed_url_is_refused_at_once(lab: Lab, option: str, url: str) -> None:
    error = lab.refusal("ladder", *SMALL, option, url)
    assert f"{option} must be an address of" in error
    assert "secret" not in error
