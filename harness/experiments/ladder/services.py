"""What the configurations work with: started, or named by an address, and filled, once for all of
them; nobody writes while they are measured.

Every configuration must answer with the same page, which is computed beforehand from what was
stored, past every cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import run_store
from harness.experiments.ladder.configurations import Configuration
from harness.experiments.ladder.options import STORAGES
from harness.model import EnvironmentProblem
from harness.server.running import Launch
from harness.server.service_check import name_of
from harness.server.services import Service, folder, service
from harness.terminal.console import tell

POSTS = 1000
POST = "1"  # whose page every user reads
ANSWER_S = 120.0  # for a thousand posts on a busy machine


@dataclass(frozen=True)
class Services:
    """`running`, by kind; `lacking`: why other kinds cannot be had. `uploads`: a folder for what
    the blog uploads. `pages`: SHA-256 of the page that every user reads, by storage."""

    running: Mapping[str, Service]
    lacking: Mapping[str, str]
    uploads: Path
    pages: dict[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        return {kind: one.version for kind, one in self.running.items()}

    def env(self, storage: str, cache: str = "") -> tuple[tuple[str, str], ...]:
        """What tells the blog where they are."""
        return (
            ("BLOG_STORAGE", self.running[storage].url),
            ("BLOG_REDIS", self.running[cache].url if cache else ""),
            ("BLOG_UPLOADS", str(self.uploads)),
        )

    def beside(self, one: Configuration, launch: Launch) -> Launch:
        """The server's launch, with what it works with."""
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
            argv, cwd=run_store.ROOT, env=env, capture_output=True, timeout=ANSWER_S, check=True
        )
    except subprocess.CalledProcessError as problem:
        last = problem.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentProblem(f"{name} cannot be used: {last}") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"{name} took longer than {ANSWER_S:g} s") from None
    return done.stdout
