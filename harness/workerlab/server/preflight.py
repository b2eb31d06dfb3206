"""What this machine and the server's interpreter can do, looked at before anything is started."""

import json
import os
import platform
import resource
import select
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from workerlab.finding import Finding
from workerlab.model import App, EnvironmentProblem, Plan, UsageError
from workerlab.server.versions import with_version
from workerlab.server.worker_classes import WORKER_CLASSES, class_named

INTROSPECT = Path(__file__).parent / "inside" / "introspect.py"
APP_KIND = INTROSPECT.with_name("app_kind.py")
ASK_S = 60.0
VERSION_S = 10.0
SPARE_FILES = 64  # what a process has open beside its connections
PYTHON = ">=3.10"  # of what runs inside the server
IP_LOCAL_PORT_RANGE = 51  # linux/in.h
SYSCTLS = (
    "net.core.somaxconn",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_syn_linear_timeouts",
    "net.ipv4.tcp_syn_retries",
    "net.ipv4.tcp_synack_retries",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.ip_local_port_range",
)


class NoGunicorn(EnvironmentProblem):
    """The interpreter has none of its own."""


class Interpreter(Struct, frozen=True):
    """What `introspect` says of the interpreter that serves the app; see there."""

    python: str
    gunicorn: str
    known: Sequence[str]
    missing: Sequence[str]
    classes: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, object]
    names: Sequence[str] = ()
    asked: str = ""  # the version of Gunicorn that was asked for; "": its own serves
    unfit: str = ""  # why no class can run there
    pip: bool = True
    note: Finding | None = None  # why it, or this Gunicorn, serves, where nobody named it

    def lacks(self, name: str) -> str | None:
        """Why this class cannot run there, with the next step; None when it can."""
        if self.unfit:
            return self.unfit
        row = class_named(name)
        if why := self.classes.get(name, {}).get("error"):
            return f"{self.python} cannot import the worker class {name}: {why}"
        if not row.path and name not in self.known:
            return f"Gunicorn {self.gunicorn} has no worker class {name}"
        if missing := [package for package in row.packages if package in self.missing]:
            names = [package.replace("_", "-") for package in missing]
            pip = f"{self.python} -m pip install"
            install = pip if self.pip else f"uv pip install --python {self.python}"
            return f"needs {' and '.join(names)}: {install} {' '.join(names)}"
        return None

    def ignores(self, name: str) -> tuple[str, ...]:
        """The settings that change nothing for this class in its version of Gunicorn."""
        row, own = class_named(name), Version(self.gunicorn)
        return tuple(
            one for one in row.ignores
            if one not in row.heeds_from or own < Version(row.heeds_from[one])
        )  # fmt: skip

    def serves_asgi(self, name: str) -> bool | None:
        """Whether applications for this class are ASGI; None where its ancestors do not tell."""
        row = class_named(name)
        return row.asgi if row.slots_known else self.classes.get(name, {}).get("asgi")


def interpreter(
    python: str,
    chdir: Path,
    config: str | None,
    classes: Iterable[str] = (),
    env: Mapping[str, str] = {},
    gunicorn: str = "",
) -> Interpreter:
    """`classes`: those that are to serve; `env`: of the apps; `gunicorn`: the version of Gunicorn
    that serves, "" for its own. Raises EnvironmentProblem when it does not run, NoGunicorn among
    these, or none of that version can be had; UsageError when the user's Gunicorn file cannot be
    read."""
    packages = {package for row in WORKER_CLASSES.values() for package in row.packages}
    own = [name for name in classes if name not in WORKER_CLASSES]
    request = {"config": config, "packages": sorted(packages), "classes": own}
    together = {**os.environ, **env}
    try:
        done = subprocess.run(
            [python, str(INTROSPECT), json.dumps(request)],
            cwd=chdir,
            env={**together, **with_version(gunicorn, together)},
            capture_output=True,
            text=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
        )
        said = done.stdout.splitlines() or [""]
        answer = json.loads(said[-1])
    except ValueError:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise EnvironmentProblem(f"{python} does not answer as a Python should: {why}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"{python} does not answer as a Python should: {error}") from error
    version, requires = answer.pop("python"), answer.pop("requires")
    if answer["gunicorn"] is None:
        how = f"{python} -m pip install gunicorn, or say --gunicorn 25.3.0"
        raise NoGunicorn(f"{python} has no Gunicorn: {how}")
    if gunicorn and Version(answer["gunicorn"]) != Version(gunicorn):
        raise EnvironmentProblem(
            f"{python} imports Gunicorn {answer['gunicorn']} and not {gunicorn}: there is another"
            f" one in {chdir.absolute()} or on its PYTHONPATH"
        )
    if why := answer.pop("error"):
        raise UsageError(f"{config} cannot be read as a Gunicorn file: {why}")
    unfit = _unfit(python, version, answer["gunicorn"], requires)
    return Interpreter(python, **answer, asked=gunicorn, unfit=unfit)


def _unfit(python: str, version: str, gunicorn: str, requires: str | None) -> str:
    """Why an interpreter of that version cannot serve under the lab; "" where it can."""
    for what, wanted in ((f"Gunicorn {gunicorn}", requires or ""), ("workerlab", PYTHON)):
        if not SpecifierSet(wanted).contains(version, prereleases=True):
            return f"{what} needs Python {wanted}, and {python} is {version}"
    return ""


def app_kind(interpreter: Interpreter, app: App, config: str | None) -> str:
    """Which interface the app has, by an import in the interpreter that will serve it: "wsgi",
    "asgi", "asgi2" or "tornado"; "unknown" where it does not say, or cannot be imported so."""
    env = {**os.environ, **dict(app.env)}
    request = {"app": app.target, "config": os.path.abspath(config) if config else None}
    try:
        return subprocess.run(
            [interpreter.python, str(APP_KIND), json.dumps(request)],
            cwd=app.chdir or None,
            env={**env, **with_version(interpreter.asked, env)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=ASK_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"


Interpreters = Mapping[tuple[str, str], Interpreter]  # by `python` and `gunicorn` of a Server


def of_plan(plan: Plan, chdir: Path) -> Interpreters:
    """Those that the servers of a plan need. Raises as `interpreter`."""
    classes = [server.worker_class for server in plan.servers if server.null is None]
    env = dict(pair for server in plan.servers for pair in server.app.env)
    return {
        (own, version): interpreter(
            own or plan.python, chdir, plan.config, classes, env, version or plan.gunicorn
        )
        for own, version in dict.fromkeys((one.python, one.gunicorn) for one in plan.servers)
    }


def raise_file_limit() -> int | None:
    """Lift the soft limit of open files to the hard one, for us and all we start. Returns it;
    None: unlimited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS reports "unlimited" and refuses it
            hard = soft
    return None if hard == resource.RLIM_INFINITY else hard


def port_range() -> tuple[int, int] | None:
    low, _, high = (sysctl("net.ipv4.ip_local_port_range") or "").partition("\t")
    return (int(low), int(high)) if low else None


def narrows_ports() -> bool:
    """Whether a socket can be told which local ports to use (Linux 6.3)."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, 0)
        except OSError:
            return False
    return True


def check_levels(levels: Iterable[int], sources: int = 1) -> None:
    """Raises UsageError for a concurrency this machine's limits do not allow. `sources`: local
    addresses to connect from, each of which has all ports anew."""
    files, ports, highest = raise_file_limit(), port_range(), max(levels)
    needed = highest + SPARE_FILES
    if files is not None and needed > files:
        raise UsageError(
            f"concurrency {highest} needs {needed} open files, the limit is {files}: raise it"
            f" (ulimit -n {needed}, as root where that is refused) or choose a level up to"
            f" {files - SPARE_FILES}"
        )
    if ports is not None and highest > (room := (ports[1] - ports[0] + 1) * sources):
        raise UsageError(
            f"concurrency {highest} needs as many local ports, {ports[0]}-{ports[1]} are {room}:"
            f" widen net.ipv4.ip_local_port_range or choose a level up to {room}"
        )


def find_tool(program: str | None) -> bool:
    return program is None or shutil.which(program) is not None


def tool_version(argv: tuple[str, ...]) -> str | None:
    """The first line a load tool says of itself. No more is read: what is called ab may be
    anything, and never stop."""
    try:
        tool = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError:
        return None
    with tool:
        assert tool.stdout is not None
        readable, _, _ = select.select([tool.stdout], [], [], VERSION_S)
        text = os.read(tool.stdout.fileno(), 1000).decode(errors="replace") if readable else ""
        tool.kill()
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else None


def _cpu_model() -> str | None:
    lines = (_text("/proc/cpuinfo") or f"model name: {platform.processor()}").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(models, None) or None


def _text(path: str) -> str | None:
    """Of a file that this kernel may not have."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def sysctl(name: str) -> str | None:
    return _text(f"/proc/sys/{name.replace('.', '/')}")


def _usable() -> list[int]:
    """Cores that this process may run on; none where processes cannot be bound to any."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def cores() -> int | None:
    return len(_usable()) or os.cpu_count()


def own_core() -> int | None:
    """The core a server that is not under test gets to itself: the last one of several."""
    usable = _usable()
    return usable[-1] if len(usable) > 1 else None


def machine(tools: Mapping[str, str | None]) -> dict[str, object]:
    """What somebody else must know to believe or repeat the numbers. None: not known here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "tools": dict(tools),
        "sysctl": {name: sysctl(name) for name in SYSCTLS},
        "open_files": {"soft": soft, "hard": hard},
        "load_average_at_start": os.getloadavg()[0],
    }


def fingerprint(
    interpreters: Iterable[Interpreter], tools: Mapping[str, str | None]
) -> dict[str, object]:
    """The same where Gunicorn is under test, and in which versions."""
    every = tuple(interpreters)
    pythons = dict.fromkeys(one.python for one in every)
    versions = dict.fromkeys(one.gunicorn for one in every)
    return {**machine(tools), "server_python": ", ".join(pythons), "gunicorn": ", ".join(versions)}
