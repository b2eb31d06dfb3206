"""Checks what this machine and the server's interpreter support, before anything is started."""

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

from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.finding import Finding
from workerlab.model.plan import App, Plan
from workerlab.numbers.units import listed
from workerlab.server.inside.families import FAMILIES
from workerlab.server.running import DUMP_PREFIX, importing_at
from workerlab.server.versions import with_version
from workerlab.server.worker_classes import CLASSES, SERVERS, class_named, ignored_settings

INTROSPECT = Path(__file__).parent / "inside" / "introspect.py"
APP_KIND = INTROSPECT.with_name("app_kind.py")
INTROSPECT_TIMEOUT_S = 60.0
VERSION_TIMEOUT_S = 10.0
SPARE_FILES = 64  # files that a process has open besides its connections
PYTHON = ">=3.10"  # required by the code that runs inside the server
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
    """The interpreter has no Gunicorn installed."""


class Interpreter(Struct, frozen=True):
    """The interpreter that serves the app, as printed by `introspect`."""

    python: str
    gunicorn: str
    worker_classes: Sequence[str]
    missing: Sequence[str]
    classes: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, object]
    names: Sequence[str] = ()  # of Gunicorn's settings; empty without a Gunicorn file
    assignments: Mapping[str, Mapping[str, Any]] = {}
    absent: Mapping[str, str] = {}
    requested: str = ""  # the requested version of Gunicorn; "": its own
    why_unfit: str = ""  # the reason why no class can run there, if any
    pip: bool = True
    note: Finding | None = None  # why it or its Gunicorn was chosen, if the user named none

    def why_unavailable(self, name: str) -> str | None:
        """The reason why this class cannot run there, with advice; None if it can."""
        if self.why_unfit:
            return self.why_unfit
        row = class_named(name)
        if why := self.classes.get(name, {}).get("error"):
            return f"{self.python} cannot import the worker class {name}: {why}"
        if not (row.path or row.alone) and name not in self.worker_classes:
            return f"Gunicorn {self.gunicorn} has no worker class {name}"
        if missing := [package for package in row.packages if package in self.missing]:
            names = [package.replace("_", "-") for package in missing]
            pip = f"{self.python} -m pip install"
            install = pip if self.pip else f"uv pip install --python {self.python}"
            kind = "server" if row.alone else "worker class"
            problem = f"{kind} {name} needs {listed(names)}"
            return f"{problem}; install with: {install} {' '.join(names)}"
        return None

    def ignores(self, name: str) -> tuple[str, ...]:
        """The settings that have no effect on this class in this version of Gunicorn."""
        return ignored_settings(class_named(name), self.gunicorn)

    def serves_asgi(self, name: str) -> bool | None:
        """Whether this class serves ASGI applications; None if unknown."""
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
    """Inspect an interpreter. `classes`: the worker classes to run; `env`: the apps' variables;
    `gunicorn`: the version to run, "" for the interpreter's own. Raises EnvironmentProblem if the
    interpreter does not run or that version is not available, NoGunicorn if it has none, UsageError
    if the user's Gunicorn file cannot be read."""
    names = (*CLASSES, *SERVERS)
    packages = {package for row in map(class_named, names) for package in row.packages}
    custom = [name for name in classes if name not in names]
    request = {
        "config": config,
        "packages": sorted(packages),
        "classes": custom,
        "bases": {family.base: family.asgi for family in FAMILIES},
    }
    merged_env = {**os.environ, **env}
    merged_env |= with_version(gunicorn, merged_env)
    facts = _introspect(python, request, chdir, merged_env)
    version, requires = facts.pop("python"), facts.pop("requires")
    if facts["gunicorn"] is None:
        advice = f"{python} -m pip install gunicorn, or use --gunicorn 25.3.0"
        raise NoGunicorn(f"{python} has no Gunicorn: {advice}")
    if gunicorn and Version(facts["gunicorn"]) != Version(gunicorn):
        raise EnvironmentProblem(
            f"{python} imports Gunicorn {facts['gunicorn']} instead of {gunicorn}: there is another"
            f" copy in {chdir.absolute()} or on its PYTHONPATH"
        )
    if why := facts.pop("error"):
        raise UsageError(f"{config} cannot be read as a Gunicorn file: {why}")
    why_unfit = _why_unfit(python, version, facts["gunicorn"], requires)
    return Interpreter(python, **facts, requested=gunicorn, why_unfit=why_unfit)


def _introspect(
    python: str, request: Mapping[str, object], chdir: Path, env: Mapping[str, str]
) -> dict[str, Any]:
    """The document that `introspect` prints in that interpreter. Raises EnvironmentProblem."""
    try:
        completed = subprocess.run(
            [python, str(INTROSPECT), json.dumps(request)],
            cwd=chdir,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",  # it may be any program
            timeout=INTROSPECT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        facts: dict[str, Any] = json.loads((completed.stdout.splitlines() or [""])[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        why = str(error)
        if isinstance(error, ValueError):  # no document
            why = (completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"])[
                0
            ]
        raise EnvironmentProblem(f"{python} does not work as a Python interpreter: {why}") from None
    return facts


def _why_unfit(python: str, version: str, gunicorn: str, requires: str | None) -> str:
    """The reason why this version of Python cannot run the server; "" if it can."""
    for component, required in ((f"Gunicorn {gunicorn}", requires or ""), ("workerlab", PYTHON)):
        if not SpecifierSet(required).contains(version, prereleases=True):
            return f"{component} needs Python {required}, but {python} is {version}"
    return ""


def app_kind(
    interpreter: Interpreter, app: App, config: str | None, limit_s: float = INTROSPECT_TIMEOUT_S
) -> str:
    """The app's interface, found by importing it in the interpreter that will serve it: "wsgi",
    "asgi", "asgi2" or "tornado"; "unimportable" if the import fails, else "unknown". Raises
    EnvironmentProblem if the import takes longer than `limit_s`."""
    env = {**os.environ, **dict(app.env)}
    config = os.path.abspath(config) if config else None
    request = {"app": app.target, "config": config, "limit_s": limit_s}
    try:
        completed = subprocess.run(
            [interpreter.python, str(APP_KIND), json.dumps(request)],
            cwd=app.chdir or None,
            env={**env, **with_version(interpreter.requested, env)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=limit_s + INTROSPECT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    if completed.stdout.startswith(DUMP_PREFIX):
        where = importing_at(completed.stdout)
        why = f"{app.target} was not imported within {limit_s:.0f} s{where}"
        raise EnvironmentProblem(f"{why}. {interpreter.note}" if interpreter.note else why)
    return completed.stdout or "unimportable"  # no output: the import ended the process


Interpreters = Mapping[tuple[str, str], Interpreter]  # by `python` and `gunicorn` of a Server


def interpreters_of(plan: Plan, chdir: Path) -> Interpreters:
    """The interpreters that the servers of a plan need. Raises what `interpreter` raises."""
    classes = [server.worker_class for server in plan.servers if server.null is None]
    env = dict(pair for server in plan.servers for pair in server.app.env)
    return {
        (executable, version): interpreter(
            executable or plan.python,
            chdir,
            plan.config,
            classes=classes,
            env=env,
            gunicorn=version or plan.gunicorn,
        )
        for executable, version in dict.fromkeys(
            (server.python, server.gunicorn) for server in plan.servers
        )
    }


def raise_file_limit() -> int | None:
    """Raise the soft limit of open files to the hard one, for this process and its children.
    Returns the limit; None: unlimited."""
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


def can_restrict_ports() -> bool:
    """Whether sockets can be restricted to a range of local ports (Linux 6.3)."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, 0)
        except OSError:
            return False
    return True


def check_levels(levels: Iterable[int]) -> None:
    """Raises UsageError for a concurrency beyond this machine's limits."""
    files, ports, highest = raise_file_limit(), port_range(), max(levels)
    required_files = highest + SPARE_FILES
    if files is not None and required_files > files:
        raise UsageError(
            f"concurrency {highest} needs {required_files} open files, but the limit is {files}:"
            f" raise it (ulimit -n {required_files}, as root if refused) or choose a level of at"
            f" most {files - SPARE_FILES}"
        )
    if ports is not None and highest > (count := ports[1] - ports[0] + 1):
        raise UsageError(
            f"concurrency {highest} needs {highest} local ports, but the range"
            f" {ports[0]}-{ports[1]} has only {count}: widen net.ipv4.ip_local_port_range or"
            f" choose a level of at most {count}"
        )


def has_tool(program: str | None) -> bool:
    return program is None or shutil.which(program) is not None


def tool_version(argv: tuple[str, ...]) -> str | None:
    """The first line that a load tool prints. Reads no more: the `ab` on PATH
    may be another program, which may never exit."""
    try:
        tool = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError:
        return None
    with tool:
        assert tool.stdout is not None
        readable, _, _ = select.select([tool.stdout], [], [], VERSION_TIMEOUT_S)
        text = os.read(tool.stdout.fileno(), 1000).decode(errors="replace") if readable else ""
        tool.kill()
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else None


def _cpu_model() -> str | None:
    lines = (_text("/proc/cpuinfo") or f"model name: {platform.processor()}").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(models, None) or None


def _text(path: str) -> str | None:
    """The text of a file; None if this kernel does not have it."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def address_facing(hosts: tuple[str, ...]) -> str:
    """This machine's IPv4 address on the route to the first of `hosts`; loopback if there are none.
    Raises UsageError for an unknown host, or one without a route.

    So a server listens on loopback only, or on the one address that the load hosts reach."""
    if not hosts:
        return "127.0.0.1"
    address = _address_of(hosts[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect((address, 9))  # sends nothing: the kernel looks up the route
        except OSError as error:
            raise UsageError(f"--load-hosts: no route to {hosts[0]}: {error}") from None
        return str(route.getsockname()[0])


def check_load_hosts(hosts: Iterable[str], port: int) -> None:
    """Raises UsageError for an unknown host, or if `port` is in use on this machine."""
    for host in hosts:
        _address_of(host)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UsageError(
                f"--load-hosts: port {port}, to which the load hosts connect, is in use: {error}"
            ) from None


def _address_of(host: str) -> str:
    try:
        addresses = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--load-hosts: unknown host {host}: {error}") from None
    return str(addresses[0][4][0])


def sysctl(name: str) -> str | None:
    return _text(f"/proc/sys/{name.replace('.', '/')}")


def _usable_cores() -> list[int]:
    """Cores that this process may run on; [] if the system has no CPU affinity."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def cores() -> int | None:
    return len(_usable_cores()) or os.cpu_count()


def own_core() -> int | None:
    """The last core, reserved for a server that is not under test; None if there is only one."""
    usable = _usable_cores()
    return usable[-1] if len(usable) > 1 else None


def machine(tools: Mapping[str, str | None]) -> dict[str, object]:
    """Facts about this machine that help to judge or repeat measurements. None: unknown."""
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
    interpreters: Iterable[Interpreter],
    tools: Mapping[str, str | None],
    classes: Iterable[str],
) -> dict[str, object]:
    """The facts of `machine`, with the interpreters and, if Gunicorn serves any of the classes, its
    versions."""
    interpreters = tuple(interpreters)
    pythons = dict.fromkeys(interpreter.python for interpreter in interpreters)
    facts = {**machine(tools), "server_python": ", ".join(pythons)}
    if not all(class_named(name).alone for name in classes):
        versions = dict.fromkeys(interpreter.gunicorn for interpreter in interpreters)
        facts["gunicorn"] = ", ".join(versions)
    return facts
