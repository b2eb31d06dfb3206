"""`workerlab ladder`: what makes a real web app fast? Each step removes one thing from a blog.

Each configuration is a server, measured by ordinary cells. Environment variables set where the app
stores its posts and what it may cache. Services are started, or given by address, and filled once
for all configurations; nothing is written to them during a measurement. A response is valid only if
it equals the page rendered beforehand from the same storage without any cache.

Addresses may contain passwords. They are passed to the servers and never stored, so a resumed run
needs them again.
"""

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
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.environment import interpreters
from workerlab.experiments.ladder import steps
from workerlab.experiments.ladder.limits import MAX_USERS_MULTIPLE, next_load
from workerlab.experiments.ladder.options import STORAGES, LadderOptions
from workerlab.experiments.ladder.steps import (
    CACHE,
    ONE_USER,
    USUAL_USERS,
    Configuration,
    from_details,
    ladder,
)
from workerlab.experiments.planning import available_tools, check_tools, gunicorn_plan
from workerlab.experiments.reading import report_of, trial_data
from workerlab.experiments.runner import Setup
from workerlab.finding import Finding, Note
from workerlab.load.locust import PORT
from workerlab.model.plan import Cell, Plan, Trial
from workerlab.paths import bundled_root
from workerlab.server import preflight
from workerlab.server.running import Launch
from workerlab.server.service_check import STAND_IN, check_url, name_of
from workerlab.server.services import (
    BLOG_PACKAGES,
    Service,
    folder,
    service,
    why_packages_missing,
    why_unavailable,
)
from workerlab.terminal.console import tell

ONE_USER_TOOL = "fast"
TOOLS = ("locust-fast", "fast")  # for many users, if installed
POSTS = 100  # a thousand would take two seconds of CPU, mostly for rendering
PAGE_POST = "1"  # the post whose page every user reads
COMMAND_S = 120.0  # for a command of the blog, on a busy machine
NO_SINGLE_USER = "A single user is not measured: the load comes from other hosts."
FULL_LOAD, QUICK_LOAD = (1000, 6.0, 3), (100, 2.0, 1)  # users, seconds, trials


@contextmanager
def setup(options: LadderOptions, plan: Plan | None) -> Iterator[Setup]:
    """Yields the setup of the run. Rejects invalid options before it starts a service. Raises
    LabError."""
    if why := why_packages_missing(BLOG_PACKAGES):
        raise EnvironmentProblem(why)
    urls = urls_of(options)
    if plan is None:  # a resumed run's levels were checked when it began
        times = MAX_USERS_MULTIPLE if options.find_limit else 1
        preflight.check_levels([times * users_of(options)])
    elif options.trials and options.trials <= plan.trials:
        raise UsageError(f"--trials must be greater than the run's {plan.trials}")
    tools, notes = tools_of(options)
    gunicorns = {} if plan else interpreters(options)
    kinds = kinds_of(plan) if plan else (*(options.storages or default_storages(urls)), CACHE)
    with services(kinds, urls) as blog:
        if blog.unavailable and (plan or not blog.pages):
            raise EnvironmentProblem("; ".join(blog.unavailable.values()))
        if plan is None:
            workers = options.workers
            configurations = steps.configurations(
                blog.unavailable, kinds[:-1], workers, blog.pages, blog.stand_ins
            )
            plan = plan_of(options, configurations, tools, gunicorns, notes)
        by_name = {configuration.name: configuration for configuration in from_details(plan)}
        yield Setup(
            plan,
            gunicorns,
            {"services": blog.versions},
            prepare_launch=partial(blog.prepare_launch, by_name),
            grow=partial(grow, options.trials or 0),
        )


def urls_of(options: LadderOptions) -> dict[str, str]:
    """Addresses of running services, by kind. Raises UsageError."""
    options_by_kind = {
        "mongodb": options.mongodb_url,
        "postgresql": options.postgresql_url,
        "redis": options.redis_url,
    }
    urls = {kind: url for kind, url in options_by_kind.items() if url}
    for kind, url in urls.items():
        check_url(kind, url)
    return urls


def users_of(options: LadderOptions) -> int:
    return options.users or (QUICK_LOAD if options.quick else FULL_LOAD)[0]


def tools_of(options: LadderOptions) -> tuple[Sequence[str], tuple[Finding, ...]]:
    """Load tools for many users, with notes for the plan. Raises LabError."""
    defaults = TOOLS[:1] if options.load_hosts else TOOLS
    check_tools(options.tools or (defaults if options.load_hosts else ()))
    tools, notes = available_tools(options.tools or defaults)
    if not options.load_hosts:
        return tools, notes
    if "fast" in tools:
        raise UsageError("--load-hosts needs locust-fast or locust (--tools)")
    preflight.check_load_hosts(options.load_hosts, PORT)
    return tools, (Note(NO_SINGLE_USER),)


def kinds_of(plan: Plan) -> tuple[str, ...]:
    """Kinds of the services that the plan needs."""
    runnable = [configuration for configuration in from_details(plan) if not configuration.why_not]
    return tuple(dict.fromkeys(kind for configuration in runnable for kind in configuration.kinds))


def plan_of(
    options: LadderOptions,
    configurations: Sequence[Configuration],
    tools: Sequence[str],
    gunicorns: preflight.Interpreters,
    notes: tuple[Finding, ...],
) -> Plan:
    users, (_, duration_s, trials) = users_of(options), QUICK_LOAD if options.quick else FULL_LOAD
    single_load = [] if options.load_hosts else [(ONE_USER_TOOL, ONE_USER)]
    loads = [*single_load, *((tool, users) for tool in tools)]
    search = {USUAL_USERS: users} if options.find_limit else {}
    return gunicorn_plan(
        "ladder",
        (
            Cell(configuration.server, tool, count, keepalive=True)
            for configuration in configurations
            if not configuration.why_not
            for tool, count in loads
        ),
        gunicorns,
        trials=options.trials or trials,
        duration_s=options.duration or duration_s,
        notes=notes,
        load_hosts=options.load_hosts,
        slo=options.find_limit or "",
        details={**steps.to_details(configurations), **search},
    )


def grow(trials: int, directory: Path, plan: Plan) -> Plan | None:
    """The plan with more launches (`trials`), else with the next number of users in a search; None
    if neither applies."""
    if trials > plan.trials:
        return replace(plan, trials=trials)
    if (users := plan.details.get(USUAL_USERS)) is None:
        return None
    run = run_store.load(directory)
    report = report_of(run, trial_data(run, keep=True))
    if load := next_load(ladder(report.cells, from_details(plan), report.environment, users)):
        cell = replace(plan.cells[0], tool=load.tool, concurrency=load.users)
        return replace(plan, cells=(*plan.cells, cell))
    return None


def default_storages(urls: Mapping[str, str]) -> tuple[str, ...]:
    """All storages but SQLite if at least one of them is available, else all."""
    servers = tuple(kind for kind in STORAGES if kind != "sqlite")
    any_available = any(kind in urls or not why_unavailable(kind) for kind in servers)
    return servers if any_available else STORAGES


# --- services ------------------------------------------------------------------------------------


class Services(Struct, frozen=True):
    """`running`: services by kind; `unavailable`: why a kind is not running. `uploads`: a folder
    for the blog's uploads. `pages`: SHA-256 of the page that every user reads, by storage."""

    running: Mapping[str, Service]
    unavailable: Mapping[str, str]
    uploads: Path
    pages: dict[str, str] = {}

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the running services, by kind."""
        return {kind: service.version for kind, service in self.running.items()}

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """Kinds replaced by another server with the same protocol."""
        return tuple(kind for kind, name in self.versions.items() if name.startswith(STAND_IN))

    def env(self, storage: str, cache: str = "") -> tuple[tuple[str, str], ...]:
        """Environment variables of the blog, with its services."""
        return (
            ("BLOG_STORAGE", self.running[storage].url),
            ("BLOG_REDIS", self.running[cache].url if cache else ""),
            ("BLOG_UPLOADS", str(self.uploads)),
        )

    def prepare_launch(
        self, by_name: Mapping[str, Configuration], trial: Trial, launch: Launch
    ) -> Launch:
        """The launch with the addresses of its services, and their pids by role."""
        configuration = by_name[trial.cell.server.name]
        roles = {"storage": configuration.storage, "cache": configuration.cache}
        services = {
            role: pid
            for role, kind in roles.items()
            if kind and (pid := self.running[kind].pid) is not None
        }
        env = self.env(configuration.storage, configuration.cache)
        return replace(launch, env=env, services=services)


@contextmanager
def services(kinds: Sequence[str], urls: Mapping[str, str]) -> Iterator[Services]:
    """Starts the available services of `kinds`, fills the storages, and stops all afterwards.
    `urls`: addresses of running services, which are tried before any service is started. Raises
    EnvironmentProblem if one of them cannot be used."""
    with ExitStack() as stack:
        running: dict[str, Service] = {}
        unavailable: dict[str, str] = {}
        for kind in sorted(kinds, key=lambda kind: kind not in urls):
            name = name_of(kind)
            try:
                running[kind] = stack.enter_context(service(kind, urls.get(kind)))
                tell(f"{name}: {running[kind].version}")
            except EnvironmentProblem as problem:
                if kind in urls:
                    raise
                unavailable[kind] = str(problem)
                tell(f"no {name}: {problem}")
        ordered = {kind: running[kind] for kind in kinds if kind in running}
        blog = Services(ordered, unavailable, stack.enter_context(folder()))
        for kind in filter(STORAGES.__contains__, ordered):
            blog.pages[kind] = stack.enter_context(filled_storage(blog, kind, drop=kind in urls))
        yield blog


@contextmanager
def filled_storage(services: Services, kind: str, *, drop: bool) -> Iterator[str]:
    """Fills a storage with the lab's posts. Yields the SHA-256 of the page that every user reads.
    `drop`: remove the posts afterwards. Raises EnvironmentProblem if it already holds posts."""
    if int(run_blog(services, kind, "count")):
        raise EnvironmentProblem(
            f"the {name_of(kind)} database already holds posts: use an empty one"
        )
    try:
        run_blog(services, kind, "seed", "--posts", str(POSTS))
        yield hashlib.sha256(run_blog(services, kind, "page", PAGE_POST)).hexdigest()
    finally:
        if drop:
            run_blog(services, kind, "drop")


def run_blog(services: Services, kind: str, *args: str) -> bytes:
    """Run a command of the blog on this storage. Returns its output. Raises EnvironmentProblem if
    it fails."""
    argv = [sys.executable, "-m", "apps.blog", *args]
    # With PYTHONSAFEPATH, Python would not import from the current directory
    path = filter(None, (str(bundled_root()), os.environ.get("PYTHONPATH")))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **dict(services.env(kind))}
    name = name_of(kind)
    try:
        process = subprocess.run(argv, env=env, capture_output=True, timeout=COMMAND_S, check=True)
    except subprocess.CalledProcessError as problem:
        last_line = problem.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentProblem(f"{name} cannot be used: {last_line}") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"{name} took longer than {COMMAND_S:g} s") from None
    return process.stdout
