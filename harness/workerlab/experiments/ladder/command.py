"""`workerlab ladder`: what makes a real web app fast? A blog, with one thing less at each step.

Every configuration is a server of ordinary cells, whose app is told by its environment where its
posts are stored and what it may cache. The services are started, or named by an address, and filled
once for all of them; nobody writes while they are measured. All must answer with the same page,
which is computed beforehand from what was stored, past every cache.

Addresses may hold passwords: they are given to the servers and written nowhere, and a run that is
resumed asks for them again.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from workerlab import run_store
from workerlab.bundled import bundled_root
from workerlab.experiments.environment import interpreters
from workerlab.experiments.ladder import configurations as steps
from workerlab.experiments.ladder.configurations import CACHE, Configuration, from_details
from workerlab.experiments.ladder.limits import MAX_TIMES_USERS, next_load
from workerlab.experiments.ladder.options import STORAGES
from workerlab.experiments.ladder.steps import ONE_USER, USUAL_USERS, ladder
from workerlab.experiments.planning import check_tools, gunicorn_plan, installed
from workerlab.experiments.reading import read_before, report_of
from workerlab.experiments.runner import Setup
from workerlab.load import hosts
from workerlab.load.locust import PORT
from workerlab.model import Cell, EnvironmentProblem, Finding, Plan, Trial, UsageError
from workerlab.server import preflight
from workerlab.server.running import Launch
from workerlab.server.service_check import KINDS, OTHER, check_url, name_of
from workerlab.server.services import BLOG, Service, folder, lacks, lacks_packages, service
from workerlab.terminal.console import tell

URLS = {f"{kind}_url": kind for kind in KINDS if kind != "sqlite"}  # options; may hold passwords
RESUMES_WITH = (*URLS, "trials")
ONE_USER_TOOL = "fast"
TOOLS = ("locust-fast", "fast")  # for many users: those of them that are installed
POSTS = 1000
POST = "1"  # whose page every user reads
ANSWER_S = 120.0  # for a thousand posts on a busy machine
FULL, QUICK = (1000, 6.0, 3), (100, 2.0, 1)  # users, seconds, trials


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    """All that can be refused is, before a service is started."""
    if why := lacks_packages(BLOG):
        raise EnvironmentProblem(why)
    urls = {kind: url for name, kind in URLS.items() if (url := getattr(options, name, None))}
    for kind, url in urls.items():
        check_url(kind, url)
    users, duration_s, trials = QUICK if options.quick else FULL
    users = options.users or users
    if plan is None:  # else its own levels are looked at
        preflight.check_levels([users * (MAX_TIMES_USERS if options.find_limit else 1)])
    elif options.trials and options.trials <= plan.trials:
        raise UsageError(f"--trials must be more than {plan.trials}, which the run has")
    check_tools(options.tools or (TOOLS[:1] if options.load_hosts else ()))
    tools, notes = installed(options.tools or TOOLS[: 1 if options.load_hosts else None])
    if options.load_hosts:
        if "fast" in tools:
            raise UsageError("--load-hosts needs locust-fast or locust (--tools)")
        hosts.check(options.load_hosts, PORT)
        notes = (Finding("ladder.no_single_user"),)
    single = [] if options.load_hosts else [(ONE_USER_TOOL, ONE_USER)]
    gunicorns = {} if plan else interpreters(options)
    if plan:  # of the services that it needs
        able = [one for one in from_details(plan) if not one.why_not]
        kinds = tuple(dict.fromkeys(kind for one in able for kind in one.kinds))
    else:
        kinds = (*(options.storages or _storages(urls)), CACHE)
    with services(kinds, urls) as found:
        if found.lacking and (plan or not found.pages):
            raise EnvironmentProblem("; ".join(found.lacking.values()))
        if not plan:
            workers = options.workers or 2
            search = {USUAL_USERS: users} if options.find_limit else {}
            versions = {kind: service.version for kind, service in found.running.items()}
            others = tuple(kind for kind, name in versions.items() if name.startswith(OTHER))
            planned = steps.configurations(found.lacking, kinds[:-1], workers, found.pages, others)
            loads = [*single, *((tool, users) for tool in tools)]
            cells = (
                Cell(one.server, tool, many, keepalive=True)
                for one in planned
                if not one.why_not
                for tool, many in loads
            )
            plan = gunicorn_plan(
                "ladder",
                cells,
                gunicorns,
                trials=options.trials or trials,
                duration_s=options.duration or duration_s,
                notes=notes,
                load_hosts=options.load_hosts or (),
                slo=options.find_limit or "",
                details={**steps.to_details(planned), **search},
            )
        assert plan is not None, "it is on file, or was made here"
        by_name = {one.name: one for one in from_details(plan)}
        environment = {"services": {kind: one.version for kind, one in found.running.items()}}
        prepare_launch = partial(found.prepare_launch, by_name)
        growing = partial(grow, options.trials or 0)
        yield Setup(plan, gunicorns, environment, prepare_launch=prepare_launch, grow=growing)


def grow(trials: int, directory: Path, plan: Plan) -> Plan | None:
    """With more launches, where a run is resumed with them; then with the next number of users."""
    if trials > plan.trials:
        return replace(plan, trials=trials)
    if (users := plan.details.get(USUAL_USERS)) is None:
        return None
    run = run_store.load(directory)
    report = report_of(run, known=read_before(run))
    if load := next_load(ladder(report.cells, from_details(plan), report.environment, users)):
        more = replace(plan.cells[0], tool=load.tool, concurrency=load.users)
        return replace(plan, cells=(*plan.cells, more))
    return None


def _storages(urls: Mapping[str, str]) -> tuple[str, ...]:
    """All but SQLite, or that where none of them can be had."""
    others = tuple(kind for kind in STORAGES if kind != "sqlite")
    able = any(kind in urls or not lacks(kind) for kind in others)
    return others if able else STORAGES


# --- services ------------------------------------------------------------------------------------


class Services(Struct, frozen=True):
    """`running`, by kind; `lacking`: why other kinds cannot be had. `uploads`: a folder for what
    the blog uploads. `pages`: SHA-256 of the page that every user reads, by storage."""

    running: Mapping[str, Service]
    lacking: Mapping[str, str]
    uploads: Path
    pages: dict[str, str] = {}

    def env(self, storage: str, cache: str = "") -> tuple[tuple[str, str], ...]:
        """What tells the blog where they are."""
        return (
            ("BLOG_STORAGE", self.running[storage].url),
            ("BLOG_REDIS", self.running[cache].url if cache else ""),
            ("BLOG_UPLOADS", str(self.uploads)),
        )

    def prepare_launch(
        self, by_name: Mapping[str, Configuration], trial: Trial, launch: Launch
    ) -> Launch:
        """The server's launch, with what it works with."""
        one = by_name[trial.cell.server.name]
        roles = {"storage": one.storage, "cache": one.cache}
        pids = {role: self.running[kind].pid for role, kind in roles.items() if kind}
        services = {role: pid for role, pid in pids.items() if pid is not None}
        return replace(launch, env=self.env(one.storage, one.cache), services=services)


@contextmanager
def services(kinds: Sequence[str], urls: Mapping[str, str]) -> Iterator[Services]:
    """All of `kinds` that can be had, the storages filled; gone afterwards. `urls`: addresses of
    those that are not to be started. Raises EnvironmentProblem where one of these is of no use:
    they are asked first, before anything is started."""
    with ExitStack() as stack:
        running: dict[str, Service] = {}
        lacking: dict[str, str] = {}
        for kind in sorted(kinds, key=lambda kind: kind not in urls):
            name = name_of(kind)
            try:
                running[kind] = stack.enter_context(service(kind, urls.get(kind)))
                tell(f"{name}: {running[kind].version}")
            except EnvironmentProblem as problem:
                if kind in urls:
                    raise
                lacking[kind] = str(problem)
                tell(f"no {name}: {problem}")
        ordered = {kind: running[kind] for kind in kinds if kind in running}
        found = Services(ordered, lacking, stack.enter_context(folder()))
        for kind in filter(STORAGES.__contains__, ordered):
            found.pages[kind] = stack.enter_context(_filled(found, kind, drop=kind in urls))
        yield found


@contextmanager
def _filled(services: Services, kind: str, *, drop: bool) -> Iterator[str]:
    """The storage holds the lab's posts; SHA-256 of the page that every user reads. `drop`: it is
    left as it was. Raises EnvironmentProblem where it holds posts already."""
    if int(_blog(services, kind, "count")):
        raise EnvironmentProblem(
            f"the {name_of(kind)} that was named holds posts already: name an empty database"
        )
    try:
        _blog(services, kind, "seed", "--posts", str(POSTS))
        yield hashlib.sha256(_blog(services, kind, "page", POST)).hexdigest()
    finally:
        if drop:
            _blog(services, kind, "drop")


def _blog(services: Services, kind: str, *words: str) -> bytes:
    """The output of the blog's own command. Raises EnvironmentProblem."""
    argv = [sys.executable, "-m", "apps.blog", *words]
    env = {**os.environ, **dict(services.env(kind))}
    name = name_of(kind)
    try:
        done = subprocess.run(
            argv, cwd=bundled_root(), env=env, capture_output=True, timeout=ANSWER_S, check=True
        )
    except subprocess.CalledProcessError as problem:
        last = problem.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentProblem(f"{name} cannot be used: {last}") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"{name} took longer than {ANSWER_S:g} s") from None
    return done.stdout
