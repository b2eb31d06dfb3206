"""Load from several hosts. To the network they are real ones: namespaces that share nothing but a
bridge, which stands in a namespace of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.builders.processes import default_signals
from tests.integration.conftest import LONG_S, ROOT, until
from workerlab.load.locust import FAST, RESULT_FILE, worker_command
from workerlab.model.evidence import Measurement, Output
from workerlab.model.plan import Load
from workerlab.numbers.schedule import schedule
from workerlab.server.null_server import PROGRAM

NAMES = ("master", "server", "one", "two")


def why_not() -> str:
    """Why this machine cannot have hosts of its own; nothing if it can."""
    if sys.platform != "linux" or not shutil.which("ip"):
        return "network namespaces need Linux and iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if importlib.util.find_spec("locust") is None:
        return "needs locust"
    name = f"wl{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return tried.stderr.strip()


pytestmark = pytest.mark.skipif(bool(why := why_not()), reason=why or "-")


@dataclass
class Host:
    """A network namespace with one address, and the processes that were started there."""

    namespace: str
    address: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, argv: Sequence[str], place: Path, **env: str) -> subprocess.Popen[str]:
        place.mkdir(exist_ok=True)
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *argv],
            cwd=place,
            env={**os.environ, "PATH": tools, **env},
            stdout=(place / "stdout").open("w"),
            stderr=(place / "stderr").open("w"),
            text=True,
            start_new_session=True,
            preexec_fn=default_signals,
        )
        self.started.append(process)
        return process

    def stop(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, Host]]:
    mark = f"wl{secrets.token_hex(3)}"
    with ExitStack() as stack:

        def namespace(name: str) -> str:
            ip("netns", "add", f"{mark}-{name}")
            stack.callback(ip, "netns", "del", f"{mark}-{name}")
            ip("-n", f"{mark}-{name}", "link", "set", "lo", "up")
            return f"{mark}-{name}"

        bridge = namespace("bridge")
        ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", bridge, "link", "set", "br0", "up")
        processes = {}
        for number, name in enumerate(NAMES, 1):
            host = Host(namespace(name), f"10.213.77.{number}")
            stack.callback(host.stop)
            near, far = f"to-{name}", ("peer", "name", "eth0", "netns", host.namespace)
            ip("-n", bridge, "link", "add", "name", near, "type", "veth", *far)
            ip("-n", bridge, "link", "set", "dev", near, "master", "br0", "up")
            ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.namespace, "link", "set", "eth0", "up")
            processes[name] = host
        yield processes


def text(path: Path) -> Callable[[], str]:
    return lambda: path.read_text() if path.exists() else ""


def serving(host: Host, place: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """A null server on that host, which takes its time, and its address."""
    ready = place / "ready"
    words = ("--host", host.address, "--ready", str(ready), "--delay", "0.05,0.05", *words)
    process = host.start([sys.executable, "-I", "-S", PROGRAM, *words], place / "server")
    port = json.loads(until(text(ready), "the server listens"))["port"]
    return process, f"http://{host.address}:{port}/"


def complaints(place: Path) -> str:
    """The error output of all of them."""
    return "\n".join(f"{path}: {path.read_text()}" for path in sorted(place.glob("*/stderr")))


def start(hosts: dict[str, Host], load: Load, url: str, place: Path) -> subprocess.Popen[str]:
    """The master, in `place`/master, and two workers once it waits for them."""
    master, work = hosts["master"], place / "master"
    leading = master.start(FAST.command(load, url, str(work)).argv, work)
    until(lambda: "Waiting for workers" in text(work / "stderr")(), "the master listens")
    for name in ("one", "two"):
        # Locust puts the locustfile it was sent there: who reads the other's while that is being
        # written has nothing to send, and ends
        hosts[name].start(
            worker_command(load, master.address), place / name, TMPDIR=str(place / name)
        )
    return leading


@dataclass
class Loaded:
    """A load that has ended by itself. `served`: requests and connections, by the server."""

    measured: Measurement
    parts: dict[str, dict[str, Any]]
    served: dict[str, Any]


def loaded(hosts: dict[str, Host], load: Load, place: Path) -> Loaded:
    """From both hosts, against a server of its own."""
    place.mkdir()
    report, work = place / "report", place / "master"
    target, url = serving(hosts["server"], place, "--report", str(report))
    leading = start(hosts, load, url, place)
    assert leading.wait(LONG_S * 2) == 0, complaints(place)
    os.kill(target.pid, signal.SIGTERM)
    target.wait(LONG_S)
    files = {RESULT_FILE: (work / RESULT_FILE).read_text()}
    measured = FAST.parse(Output("", (work / "stderr").read_text(), 0, files))
    return Loaded(measured, json.loads(files[RESULT_FILE])["parts"], json.loads(report.read_text()))


def test_hosts_share_one_schedule(hosts: dict[str, Host], tmp_path: Path) -> None:
    """Each sends every second of its requests, without a clock that both have, by the tool's own
    words; only the master has the body's file."""
    (tmp_path / "body").write_text("some bytes")
    at_rate = {"rate_rps": 40.0, "arrivals": "poisson", "schedule": 30_001, "keepalive": True}
    posted = {"method": "POST", "body_file": str(tmp_path / "body")}
    load = Load(40, 100, 2.0, LONG_S * 2, hosts=("one", "two"), **at_rate, **posted)
    FAST.check(load)
    for number in range(5):  # a machine that stands still all the time sends nothing
        done = loaded(hosts, load, tmp_path / str(number))
        measured = done.measured
        if measured.sent:
            break
    due = len(schedule("poisson", 40, 2, 30_001))
    shares = [part["sent"] + part["unsent"] for part in done.parts.values()]
    assert sorted(shares) == [due // 2, due - due // 2]
    assert measured.errors == {}
    assert measured.sent == measured.requests == done.served["requests"]
    assert (measured.unsent or 0) == due - measured.sent
    assert (measured.asked_rps, measured.origin_ns) == (40.0, None)
    assert measured.lag.max is not None
    assert done.served["connections"] <= 40
    for name in load.hosts:  # they have ended by themselves, and well
        assert {process.wait(LONG_S) for process in hosts[name].started} == {0}


def reported(
    here: Host, senders: Sequence[Host], words: Sequence[str], place: Path, *, cores: bool = False
) -> dict[str, Any]:
    """What the lab prints as JSON, with the load from hosts that run what it says. `cores`: the lab
    and its server have one, the hosts the others."""
    first, others = (["taskset", "-c", which] for which in ("0", f"1-{(os.cpu_count() or 2) - 1}"))
    lab = here.start(
        [*(first if cores else ()), sys.executable, "-m", "workerlab", *words],
        place / "lab",
        PYTHONPATH=str(ROOT / "harness"),
    )
    stderr = text(place / "lab" / "stderr")
    pattern = re.compile(r"^ +(sh -c '.*')$", re.MULTILINE)
    command = until(lambda: pattern.search(stderr()), "it says what to run on the hosts")[1]
    for number, host in enumerate(senders):
        argv = ["sh", "-c", f"exec {command}"]
        host.start([*(others if cores else ()), *argv], place / f"host-{number}")
    assert lab.wait(LONG_S * 3) == 0, stderr()
    document: dict[str, Any] = json.loads(text(place / "lab" / "stdout")())
    return document


def test_a_sweep_with_the_load_from_two_hosts(hosts: dict[str, Host], tmp_path: Path) -> None:
    """The command is the one that the sweep prints; it serves both trials."""
    here, senders = hosts["master"], [hosts["one"], hosts["two"]]
    words = ["sweep", "sync", "4,8", "--workers", "2", "--sleep", "0.3", "--tool", "locust",
             "--duration", "4"]  # fmt: skip
    words += ["--load-hosts", ",".join(host.address for host in senders), "--format", "json"]
    report = reported(here, senders, words, tmp_path)
    few, many = report["cells"]
    assert few["verdict"] != "invalid"  # four users start too slowly to fill two slots, at times
    assert many["verdict"] == "saturated"
    assert all(cell["failed"] == 0 for cell in report["cells"])
    listening = [json.loads(p.read_text()) for p in tmp_path.rglob("raw/*/listening.json")]
    assert {socket_row["address"][0] for socket_row in listening} == {here.address}
    for result in tmp_path.rglob(f"raw/*/tool/{RESULT_FILE}"):
        parts = json.loads(result.read_text())["parts"]
        assert [part["sent"] > 0 for part in parts.values()] == [True, True]
    for host in senders:  # as Ctrl-C does it: to all of its terminal
        os.killpg(host.started[0].pid, signal.SIGINT)
        host.started[0].wait(LONG_S)


def test_a_host_that_dies_is_not_passed_over(hosts: dict[str, Host], tmp_path: Path) -> None:
    report, work = tmp_path / "report", tmp_path / "master"
    _, url = serving(hosts["server"], tmp_path, "--report", str(report))
    load = Load(2, 100, 6.0, LONG_S * 2, keepalive=True, hosts=("one", "two"))
    leading = start(hosts, load, url, tmp_path)
    until(lambda: json.loads(report.read_text())["connections"] == 2, "both send")
    hosts["two"].stop()
    assert leading.wait(LONG_S * 2) == 0
    files = {RESULT_FILE: (work / RESULT_FILE).read_text()}
    with pytest.raises(Exception, match="1 of 2 processes of locust-fast were lost"):
        FAST.parse(Output("", "", 0, files))
