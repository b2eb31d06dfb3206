"""`workerlab ladder`, whole: on what is installed, on nothing, stopped, killed."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Lab, processes, stood_still, until
from tests.integration.conftest import lab as lab
from workerlab.server import services

SMALL = ("--quick", "--users", "6", "--tools", "fast", "--duration", "0.5")
# What the app counts is looked at ten times a second, on a busy machine less often, and twice in
# the steady part of a load that is to be known
COUNTED = (*SMALL[:-1], "1.5")

ROUNDED = 1e-5  # figures in JSON have six digits


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the load tool can do is measured by whoever comes first."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def temporary(lab: Lab, cache: Path) -> Iterator[Path]:
    """Where services keep their data: nothing is left in there. PostgreSQL's own user has to get
    there, and pytest takes that away from its own places whenever another session of it begins."""
    with tempfile.TemporaryDirectory(prefix="ladder-") as name:
        place = Path(name)
        place.chmod(0o777)
        lab.env |= {"TMPDIR": str(place), "XDG_CACHE_HOME": str(cache)}
        yield place
        until(lambda: not list(place.glob("workerlab-*")), "the data of the services is gone")


@pytest.fixture
def database(postgresql: str) -> str:
    """The address of an empty one."""
    import psycopg

    with psycopg.connect(postgresql, autocommit=True) as db:
        db.execute("DROP SCHEMA public CASCADE")
        db.execute("CREATE SCHEMA public")
    return postgresql


def rows(study: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """Of the tables that have this column."""
    return [row for table in study["tables"] for row in table["rows"] if column in row]


def needs(*kinds: str) -> None:
    for kind in kinds:
        if why := services.why_no_driver(kind) or services.why_unavailable(kind):
            pytest.skip(why)


def test_each_removed_cache_costs_a_round_trip(lab: Lab, stand_in: Path, database: str) -> None:
    """On a database and a Redis that are given by their addresses, and left as they were, and on
    what stands in for MongoDB: started, looked at and ended as MongoDB's own server would be."""
    needs("redis")
    lab.env["PATH"] = f"{stand_in.parent}{os.pathsep}{lab.env['PATH']}"
    with services.service("redis") as redis:
        words = ("--postgres-url", database, "--redis-url", redis.url)
        report = lab.report("ladder", *COUNTED, *words)
        assert tables(database) == []
        assert database not in "".join(path.read_text() for path in lab.run.rglob("*.json"))
    counted = rows(report, "storage_trips")
    assert all(row["counted_requests"] for row in counted)
    assert [row["removed"] for row in counted] == [
        "nothing",
        "in-process cache",
        "Redis",
        "MongoDB-compatible server (for PostgreSQL)",
        "other workers",
        "async",
    ]
    first, behind_redis, *straight = counted

    def trips(kind: str, of: Sequence[dict[str, Any]], each: list[float]) -> None:
        """At either end some of the six users have made a trip and have no answer yet."""
        for row, expected in zip(of, each, strict=True):
            in_flight = 6 / row["counted_requests"] + ROUNDED
            assert row[f"{kind}_trips"] == pytest.approx(expected, abs=in_flight if expected else 0)

    # Once per second each worker asks anew, and once per half minute Redis does
    in_flight = 6 / first["counted_requests"] + ROUNDED
    assert first["local_hit_ratio"] + first["redis_trips"] == pytest.approx(1, abs=in_flight)
    assert first["storage_trips"] * first["counted_requests"] <= 2
    trips("redis", [behind_redis, *straight], [1, 0, 0, 0, 0])
    # Where Redis asks anew, as many users do as come before it has the answer
    assert behind_redis["storage_trips"] * behind_redis["counted_requests"] <= 6
    trips("storage", straight, [1, 1, 1, 1])
    stores = report["environment"]["services"]
    assert stores.keys() == {"mongodb", "postgresql", "redis"}
    unlike = re.compile(r"a server that claims to be MongoDB \S+ but is not, .* lab")
    assert unlike.fullmatch(stores["mongodb"])
    assert all(row["failed"] == 0 for row in rows(report, "throughput_rps"))
    cores = [row["storage_cores"] for row in rows(report, "storage_cores")]
    assert any(cores) or stood_still(lab.run)
    titles = (chart["title"].partition("Over time: ") for chart in report["charts"])
    over_time = {title.partition(";")[0] for start, _, title in titles if not start}
    assert {"responses", "memory"} <= over_time <= {"responses", "cores", "memory", "network"}
    assert {"cores", "network"} <= over_time or stood_still(lab.run)
    words = " ".join(lab("report", str(lab.run), "--explain").out.split())
    named, count = re.subn(
        r"MongoDB- ?compatible server|MongoDB: a server|claims to be MongoDB", "", words
    )
    assert count > 3
    assert "MongoDB" not in named


def tables(url: str) -> list[str]:
    import psycopg

    with psycopg.connect(url) as db:
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        return sorted(name for (name,) in db.execute(query).fetchall())


def test_somebody_elses_posts_are_left_alone(lab: Lab, database: str) -> None:
    import psycopg

    with psycopg.connect(database) as db:
        db.execute("CREATE TABLE posts (mine text)")
    words = ("--storages", "postgresql", "--postgres-url", database)
    done = lab("ladder", *SMALL, *words)
    assert done.code == 3, done.err
    assert tables(database) == ["posts"]
    assert not (lab.place / "results").exists()


def test_with_nothing_installed_it_stands_on_sqlite_and_can_be_resumed(lab: Lab) -> None:
    """Stopped, resumed, and with more launches. It looks for a limit that the first level breaks:
    nothing answers within a microsecond, as far as others leave it a core to be measured on."""
    (lab.place / "empty").mkdir()
    lab.env |= {"PATH": str(lab.place / "empty"), "PYTHONSAFEPATH": "1"}
    words = ("--storages", "sqlite", "--workers", "1", "--find-limit", "p95<1us")
    first = lab.at_work(
        *("ladder", *SMALL, *words),
        when=lambda: list(lab.place.glob("results/*/trials.jsonl")) and lab.records(),
        what="a first cell",
    )
    stopped = lab.end(first, signal.SIGINT)
    assert stopped.code == 130, stopped.err
    assert "ladder --resume" in stopped.err
    before = {record["key"] for record in lab.records() if not record["fault"]}
    resume = ("ladder", "--resume", str(lab.run))
    line = lab.refusal(*resume, "--trials", "1")
    assert "--trials must be greater than the run's 1" in line
    report = lab.report(*resume, "--trials", "2")
    again = [record["key"] for record in lab.records()]
    assert all(again.count(key) == 1 for key in before)
    assert report["environment"]["services"].keys() == {"sqlite"}
    assert "Redis is not installed here" in lab.last.out
    with_cache, *without = rows(report, "storage_trips")
    assert len(without) == 2
    for row in (with_cache, *without):
        if not (requests := row["counted_requests"]):
            assert stood_still(lab.run), "nothing was counted on a machine that ran"
            continue
        assert row["redis_trips"] == 0
        trips = row["storage_trips"] * requests
        if row is with_cache:  # where the machine stands still, all six may find it expired at once
            assert trips <= 6 * 5
        else:  # at either end some of the six have made a trip and have no answer yet
            assert trips == pytest.approx(requests, abs=6 + ROUNDED * requests)
    the_limit_is_searched(report)
    assert {row["launches"] for row in rows(report, "factor")} == {2}


def the_limit_is_searched(report: dict[str, Any]) -> None:
    answers = [finding["answer"] for finding in report["findings"]]
    (answer,) = (answer for answer in answers if answer["code"] == "UsersServed")
    levels = [row["users"] for row in rows(report, "users")]
    broken = answer["values"]["outcome"]["code"] == "TargetBroken"
    assert levels[: 1 if broken else 4] == ([6] if broken else [6, 12, 24, 48][: len(levels)])


def test_a_killed_one_leaves_nothing(lab: Lab, temporary: Path) -> None:
    needs("postgresql", "redis")
    first = lab.at_work("ladder", *SMALL, when=lab.loads, what="the first load is on")
    assert processes(str(temporary))
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    until(lambda: not processes(str(temporary)), "servers and storages are gone")


def test_a_page_that_is_not_what_was_stored_makes_a_cell_invalid(lab: Lab, database: str) -> None:
    """Somebody edits the post in between; without Redis, whose copy would still be the old one."""
    import psycopg

    (lab.place / "empty").mkdir()
    lab.env["PATH"] = str(lab.place / "empty")
    words = ("--storages", "postgresql", "--postgres-url", database, "--workers", "1")
    first = lab.at_work("ladder", *SMALL, *words, when=lab.loads, what="the first load is on")
    with psycopg.connect(database) as db:
        db.execute("UPDATE posts SET html = '<p>Other words</p>' WHERE id = 1")
    until(lambda: len(lab.records()) > 1, "two cells")
    lab.end(first, signal.SIGINT)
    study = lab("report", str(lab.run), "--format", "json").report
    assert study["valid"] is False
    assert any(
        "stored" in note["text"] for note in study["notes"] if note["code"] == "InvalidStepTrial"
    ), study["notes"]


def test_an_address_where_nobody_answers_starts_nothing(lab: Lab) -> None:
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
def test_a_malformed_address_is_refused_before_anything_is_started(
    lab: Lab, option: str, url: str
) -> None:
    line = lab.refusal("ladder", *SMALL, option, url)
    assert f"{option} must be an address of" in line
    assert "secret" not in line
