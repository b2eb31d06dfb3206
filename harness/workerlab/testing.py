"""Loads an app under a worker class in a test: the types of the fixture in `pytest_plugin`."""

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

CONCURRENCY, SECONDS = 8, 3.0
REPEATABLE = {option.flag for option in options_of(SweepOptions).values() if option.repeatable}


class LoadResult:
    """The result of a load: `cell` has all numbers if it is valid, `str` the full report."""

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
        """Whether all terms are met. A term that the load cannot show is not met."""
        return self.valid and all(outcome == "met" for outcome in self.words(slo).values())

    def breaks(self, slo: str) -> bool:
        """Whether a term is broken for certain, not by chance."""
        return any(outcome == "broken" for outcome in self.words(slo).values())

    @property
    def valid(self) -> bool:
        return isinstance(self.cell, Result)

    def report(self, slo: str | None = None) -> str:
        """The full report of the load, and of the target."""
        return text.render(self.document(slo), explain=True)

    def __repr__(self) -> str:
        """Printed by pytest for `assert result.keeps(...), result`."""
        return self.report()


class GunicornServer:
    """An app under a worker class. `url`: a server that runs until the test ends."""

    def __init__(self, words: list[str], place: Path, url: str) -> None:
        self._words, self._place, self.url = words, place, url

    def load(
        self,
        concurrency: int = CONCURRENCY,
        seconds: float = SECONDS,
        **options: object,
    ) -> LoadResult:
        """Load the app on a server that is launched for this load. `options`: further options of
        `workerlab sweep`. Raises LabError if it fails."""
        arguments = [*self._words, "--duration", f"{seconds:g}", *words_of(options)]
        sweep_options = _options_of_sweep(
            [arguments[0], str(concurrency), *arguments[1:], "--out", str(self._place)]
        )
        directory, interrupted = runner.run("sweep", _of_one_cell, sweep_options)
        if interrupted is not None:
            raise LabError("the load was not finished")
        return LoadResult(directory)


def _options_of_sweep(words: list[str]) -> SweepOptions:
    options = parse(["sweep", *words])
    assert isinstance(options, SweepOptions)
    return options


@contextlib.contextmanager
def _of_one_cell(options: SweepOptions, plan: Plan | None) -> Iterator[runner.Setup]:
    with setup(options, plan) as prepared:
        if len(trials(prepared.plan)) != 1:
            raise UsageError("a load is a single cell: give each option one value")
        yield prepared


def words_of(options: Mapping[str, object]) -> list[str]:
    """Options as command-line arguments: worker_connections=9 becomes --worker-connections 9, True
    a flag, and a dict of headers or environment variables an argument per item."""
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
def served(words: list[str], place: Path) -> Iterator[str]:
    """Runs a Gunicorn with these settings, and yields its address."""
    plan, _ = plan_of(_options_of_sweep([words[0], "1", *words[1:]]))
    if len(trials(plan)) != 1:
        raise UsageError("a server is a single one: give each option one value")
    run_store.copy_code(place / "code")
    (trial,) = trials(plan)
    launch = launch_for(plan, trial, place)
    launch.trial.mkdir(parents=True)
    with serve(launch) as server:
        yield f"http://{server.host}:{server.port}/"
