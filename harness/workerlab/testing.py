"""The types of the fixture in `pytest_plugin`, which load-tests an app under a worker class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from workerlab import run_store
from workerlab.analysis.cell_targets import outcomes
from workerlab.cli import parse
from workerlab.errors import LabError, UsageError
from workerlab.experiments import runner
from workerlab.experiments.load_trials import launch_for
from workerlab.experiments.planning import plan_of
from workerlab.experiments.reading import document_of, report_of
from workerlab.experiments.sweep.command import setup
from workerlab.experiments.sweep_options import SweepOptions
from workerlab.model.plan import Plan
from workerlab.model.result import Document, Result
from workerlab.options import options_of
from workerlab.plan import trials
from workerlab.report import text
from workerlab.server.serve import serve
from workerlab.slo import canonical

DEFAULT_CONCURRENCY, DEFAULT_SECONDS = 8, 3.0
REPEATABLE = {option.flag for option in options_of(SweepOptions).values() if option.repeatable}


class LoadResult:
    """The result of a load. If it is valid, `cell` has all numbers; `repr` is the full report."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (self.cell,) = report_of(run_store.load(directory)).cells

    def document(self, slo: str | None = None) -> Document:
        """The document that `workerlab report` prints."""
        return document_of(self.directory, slo)

    def words(self, slo: str) -> dict[str, str]:
        """The outcome of each term of the target: met, broken, not_shown or undecidable."""
        run = run_store.load(self.directory)
        run = replace(run, plan=replace(run.plan, slo=canonical(slo)))
        (cell,) = report_of(run).cells
        return {outcome.term: outcome.result.replace(" ", "_") for outcome in outcomes(cell)}

    def keeps(self, slo: str) -> bool:
        """Whether the load shows that all terms are met."""
        return self.valid and all(outcome == "met" for outcome in self.words(slo).values())

    def breaks(self, slo: str) -> bool:
        """Whether a term is missed by a statistically significant margin."""
        return any(outcome == "broken" for outcome in self.words(slo).values())

    @property
    def valid(self) -> bool:
        return isinstance(self.cell, Result)

    def report(self, slo: str | None = None) -> str:
        """The full report of the load and the target."""
        return text.render(self.document(slo), explain=True)

    def __repr__(self) -> str:
        """The full report, which pytest prints for `assert result.keeps(...), result`."""
        return self.report()


class GunicornServer:
    """An app under a worker class. `url`: that of a server that runs until the test ends."""

    def __init__(self, arguments: list[str], directory: Path, url: str) -> None:
        self._arguments, self._directory, self.url = arguments, directory, url

    def load(
        self,
        concurrency: int = DEFAULT_CONCURRENCY,
        seconds: float = DEFAULT_SECONDS,
        **options: object,
    ) -> LoadResult:
        """Load the app on a server launched for this load. `options`: further options of `workerlab
        sweep`. Raises LabError if the load fails."""
        arguments = [*self._arguments, "--duration", f"{seconds:g}", *arguments_of(options)]
        sweep_options = _options_of_sweep(
            [arguments[0], str(concurrency), *arguments[1:], "--out", str(self._directory)]
        )
        directory, interrupted = runner.run("sweep", _single_cell_setup, sweep_options)
        if interrupted is not None:
            raise LabError("the load did not finish")
        return LoadResult(directory)


def _options_of_sweep(arguments: list[str]) -> SweepOptions:
    options = parse(["sweep", *arguments])
    assert isinstance(options, SweepOptions)
    return options


@contextlib.contextmanager
def _single_cell_setup(options: SweepOptions, plan: Plan | None) -> Iterator[runner.Setup]:
    with setup(options, plan) as prepared:
        if len(trials(prepared.plan)) != 1:
            raise UsageError("a load is a single cell: give each option one value")
        yield prepared


def arguments_of(options: Mapping[str, object]) -> list[str]:
    """The options as command-line arguments: worker_connections=9 becomes --worker-connections 9,
    True a flag, and a dict of headers or environment variables one argument per item."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            separator = ": " if name == "header" else "="
            value = [f"{key}{separator}{item}" for key, item in value.items()]
        if isinstance(value, (list, tuple)) and flag in REPEATABLE:
            arguments += [argument for item in value for argument in (flag, str(item))]
        elif isinstance(value, (list, tuple)):
            arguments += [flag, ",".join(map(str, value))]
        elif value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [flag, str(value)]
    return arguments


@contextlib.contextmanager
def running_server(arguments: list[str], directory: Path) -> Iterator[str]:
    """Run a Gunicorn with these settings. Yields its URL."""
    plan, _ = plan_of(_options_of_sweep([arguments[0], "1", *arguments[1:]]))
    if len(trials(plan)) != 1:
        raise UsageError("the fixture runs a single server: give each option one value")
    run_store.copy_code(directory / "code")
    (trial,) = trials(plan)
    launch = launch_for(plan, trial, directory)
    launch.trial.mkdir(parents=True)
    with serve(launch) as server:
        yield f"http://{server.host}:{server.port}/"
