"""Whether the GIL shows: more threads bring nothing while all of them use one core, and processes
use more. Where other programs took the cores, or there are too few, that cannot be seen."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.generators.usage import DISTURBED, Way, others_most
from harness.experiments.words import amount
from harness.model import Answer

GROWS = 1.2  # more units bring more throughput if they bring that many times as much
ONE_CORE = 1.25  # threads that share a GIL use one core, and some of the kernel's work beside it
SEVERAL = 1.3  # cores: more than one is used


def gil(ways: Sequence[Way], cores: int | None) -> Answer:
    question = "Where does the GIL show?"
    threads, processes = _levels(ways, "threads"), _levels(ways, "processes")
    if len(threads) < 2 or not processes:
        return Answer(question, "Cannot be said: it takes threads at two levels, and processes.")
    few, many = threads[0], max(threads[1:], key=lambda way: way.rps)
    used = [way.cores for way in threads if way.cores is not None]
    others = [way.cores for way in processes if way.cores is not None]
    evidence = tuple(map(_unit, (*threads, *processes)))
    if not used or not others or not few.rps:
        return Answer(question, "Cannot be said: no CPU was seen.", evidence)
    growth, most, beside = many.rps / few.rps, max(used), max(others)
    grown = (
        f"{many.connections} threads send {amount(growth)} times as much as {few.connections},"
        f" with at most {most:.2f} cores"
    )
    if (away := others_most((*threads, *processes))) > DISTURBED:
        answer = (
            f"Cannot be said here: other programs used up to {away:.2f} cores meanwhile;"
            " close them and repeat."
        )
    elif growth >= GROWS:
        answer = f"Not here: {grown}."
    elif most > ONE_CORE:
        answer = f"Not here: {grown}; threads that share a GIL do not use that many."
    elif beside < SEVERAL:
        answer = (
            f"Cannot be said here: {grown}, but processes used no more than {beside:.2f} either;"
            f" this machine has {_machine_of(cores)}."
        )
    else:
        answer = f"In the threads: {grown}; processes used {beside:.2f}."
    return Answer(question, answer, evidence)


def _machine_of(cores: int | None) -> str:
    if cores is None:
        return "an unknown number of cores"
    return "1 core" if cores == 1 else f"{cores} cores, one of them the server's"


def _levels(ways: Sequence[Way], tool: str) -> list[Way]:
    return sorted((way for way in ways if way.tool == tool), key=lambda way: way.connections)


def _unit(way: Way) -> str:
    cores = "unknown" if way.cores is None else f"{way.cores:.2f}"
    return f"{way.tool} at {way.connections}: {amount(way.rps)} requests/s, {cores} cores"
