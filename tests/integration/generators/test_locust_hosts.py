"""Load from several hosts: network namespaces connected only by a bridge in another namespace."""

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
from tests.integration.conftest import HARNESS, LONG_S, until
from workerlab.load.locust import FAST, RESULT_FILE, worker_command
from workerlab.model.evidence import Measurement, Output
from workerlab.model.plan import Load
from workerlab.numbers.schedule import schedule
from workerlab.server.null_server import PROGRAM

NAMES = ("master", "server", "one", "two")


def why_unavailable() -> str:
    """Why this machine cannot create hosts; empty if it can."""
    if sys.platform != "linux" or not shutil.which("ip"):
        return "network namespaces need Linux and iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if importlib.util.find_spec("locust") is None:
        return "needs locust"
    name = f"wl{secrets.token_hex(3)}"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return added.stderr.strip()


pytestmark = pytest.mark.skipif(bool(reason := why_unavailable()), reason=reason or "-")


@dataclass
class Host:
    """A network namespace with one address, and the processes started there."""

    namespace: str
    address: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

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
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, Host]]:
    prefix = f"wl{secrets.token_hex(3)}"
    with ExitStack() as stack:

        def namespace(name: str) -> str:
            ip("netns", "add", f"{prefix}-{name}")
            stack.callback(ip, "netns", "del", f"{prefix}-{name}")
            ip("-n", f"{prefix}-{name}", "link", "set", "lo", "up")
            return f"{prefix}-{name}"

        bridge = namespace("bridge")
        ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", bridge, "link", "set", "br0", "up")
        by_name = {}
        for number, name in enumerate(NAMES, 1):
            host = Host(namespace(name), f"10.213.77.{number}")
            stack.callback(host.stop)
            port, peer = f"to-{name}", ("peer", "name", "eth0", "netns", host.namespace)
            ip("-n", bridge, "link", "add", "name", port, "type", "veth", *peer)
            ip("-n", bridge, "link", "set", "dev", port, "master", "br0", "up")
            ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.namespace, "link", "set", "eth0", "up")
            by_name[name] = host
        yield by_name


def text(path: Path) -> Callable[[], str]:
    return lambda: path.read_text() if path.exists() else ""


def start_server(host: Host, place: Path, *args: str) -> tuple[subprocess.Popen[str], str]:
    """A null server on that host, with a delay, and its URL."""
    ready = place / "ready"
    args = ("--host", host.address, "--ready", str(ready), "--delay", "0.05,0.05", *args)
    process = host.start([sys.executable, "-I", "-S", PROGRAM, *args], place / "server")
    port = json.loads(until(text(ready), "the server listens"))["port"]
    return process, f"http://{host.address}:{port}/"


def error_output(place: Path) -> str:
    """Of all processes."""
    return "\n".join(f"{path}: {path.read_text()}" for path in sorted(place.glob("*/stderr")))


def start(hosts: dict[str, Host], load: Load, url: str, place: Path) -> subprocess.Popen[str]:
    """Starts the master in `place`/master and, once it listens, two workers."""
    master, work = hosts["master"], place / "master"
    process = master.start(FAST.command(load, url, str(work)).argv, work)
    until(lambda: "Waiting for workers" in text(work / "stderr")(), "the master listens")
    for name in ("one", "two"):
        # Locust stores the locustfile it receives in TMPDIR: a worker that read the file of the
        # other one while it is written would exit
        argv = worker_command(load, master.address)
        hosts[name].start(argv, place / name, TMPDIR=str(place / name))
    return process


def run_load(
    hosts: dict[str, Host], load: Load, place: Path
) -> tuple[Measurement, dict[str, Any], dict[str, Any]]:
    """A load from both hosts on a server of its own: the measurement, the part of each host, and
    the counts of the server."""
    place.mkdir()
    report, work = place / "report", place / "master"
    server, url = start_server(hosts["server"], place, "--report", str(report))
    assert start(hosts, load, url, place).wait(LONG_S * 2) == 0, error_output(place)
    os.kill(server.pid, signal.SIGTERM)
    server.wait(LONG_S)
    files = {RESULT_FILE: (work / RESULT_FILE).read_text()}
    measured = FAST.parse(Output("", (work / "stderr").read_text(), 0, files))
    return measured, json.loads(files[RESULT_FILE])["parts"], json.loads(report.read_text())


def test_hosts_share_one_schedule(hosts: dict[str, Host], tmp_path: Path) -> None:
    """Each sends every second request, without a common clock. Only the master has the file of the
    body."""
    (tmp_path / "body").write_text("some bytes")
    poisson = {"rate_rps": 40.0, "arrivals": "poisson", "schedule": 30_001, "keepalive": True}
    post = {"method": "POST", "body_file": str(tmp_path / "body")}
    load = Load(40, 100, 2.0, LONG_S * 2, hosts=("one", "two"), **poisson, **post)
    FAST.check(load)
    for number in range(5):  # during a pause of the machine nothing is sent
        measured, parts, served = run_load(hosts, load, tmp_path / str(number))
        if measured.sent:
            break
    due = len(schedule("poisson", 40, 2, 30_001))
    shares = [part["sent"] + part["unsent"] for part in parts.values()]
    assert sorted(shares) == [due // 2, due - due // 2]
    assert measured.errors == {}
    assert measured.sent == measured.requests == served["requests"]
    assert (measured.unsent or 0) == due - measured.sent
    assert (measured.asked_rps, measured.origin_ns) == (40.0, None)
    assert measured.lag.max is not None
    assert served["connections"] <= 40
    for name in load.hosts:  # the workers exit with the master
        assert {process.wait(LONG_S) for process in hosts[name].processes} == {0}


def reported(
    here: Host, senders: Sequence[Host], args: Sequence[str], place: Path, *, cores: bool = False
) -> dict[str, Any]:
    """The JSON document of a command on host `here`; the senders run the command it prints until
    Ctrl-C. `cores`: the lab and its server share one core, the senders use the others."""
    first, others = (["taskset", "-c", cpus] for cpus in ("0", f"1-{(os.cpu_count() or 2) - 1}"))
    argv = [*(first if cores else ()), sys.executable, "-m", "workerlab", *args]
    lab = here.start(argv, place / "lab", PYTHONPATH=HARNESS)
    stderr = text(place / "lab" / "stderr")
    pattern = re.compile(r"^ +(sh -c '.*')$", re.MULTILINE)
    command = until(lambda: pattern.search(stderr()), "it prints the command for the hosts")[1]
    argv = [*(others if cores else ()), "sh", "-c", f"exec {command}"]
    shells = [host.start(argv, place / f"host-{n}") for n, host in enumerate(senders)]
    assert lab.wait(LONG_S * 3) == 0, stderr()
    for shell in shells:  # to the whole process group, like Ctrl-C
        os.killpg(shell.pid, signal.SIGINT)
        shell.wait(LONG_S)
    document: dict[str, Any] = json.loads(text(place / "lab" / "stdout")())
    return document


def test_a_sweep_with_the_load_from_two_hosts(hosts: dict[str, Host], tmp_path: Path) -> None:
    """The hosts run the command that the sweep prints, which serves both trials."""
    master, senders = hosts["master"], [hosts["one"], hosts["two"]]
    sweep = ["sweep", "sync", "4,8", "--workers", "2", "--sleep", "0.3", "--tool", "locust",
             "--duration", "4", "--load-hosts", ",".join(host.address for host in senders),
             "--format", "json"]  # fmt: skip
    report = reported(master, senders, sweep, tmp_path)
    few, many = report["cells"]
    assert few["verdict"] != "invalid"  # four users may start too slowly to fill two slots
    assert many["verdict"] == "saturated"
    assert all(cell["failed"] == 0 for cell in report["cells"])
    listening = [json.loads(p.read_text()) for p in tmp_path.rglob("raw/*/listening.json")]
    assert {socket["address"][0] for socket in listening} == {master.address}
    for path in tmp_path.rglob(f"raw/*/tool/{RESULT_FILE}"):
        parts = json.loads(path.read_text())["parts"]
        assert [part["sent"] > 0 for part in parts.values()] == [True, True]


def test_the_loss_of_a_host_is_an_error(hosts: dict[str, Host], tmp_path: Path) -> None:
    report = tmp_path / "report"
    _, url = start_server(hosts["server"], tmp_path, "--report", str(report))
    load = Load(2, 100, 6.0, LONG_S * 2, keepalive=True, hosts=("one", "two"))
    master = start(hosts, load, url, tmp_path)
    until(lambda: json.loads(report.read_text())["connections"] == 2, "both send")
    hosts["two"].stop()
    assert master.wait(LONG_S * 2) == 0
    files = {RESULT_FILE: (tmp_path / "master" / RESULT_FILE).read_text()}
    with pytest.raises(Exception, match="1 of 2 processes of locust-fast were lost"):
        FAST.parse(Output("", "", 0, files))
