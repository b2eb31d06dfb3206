"""The sweep: every worker class at every concurrency, each trial on a fresh server."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from harness.experiments.planning import plan_of
from harness.experiments.runner import Setup
from harness.model import Plan


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    made, interpreter = plan_of(options) if plan is None else (plan, None)
    label = "-".join(dict.fromkeys(server.worker_class for server in made.servers))
    yield Setup(made, interpreter, label=label)
