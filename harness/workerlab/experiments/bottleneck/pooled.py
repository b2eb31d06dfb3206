"""The trials of a cell as one result: means, and the throughput of each, which is what cells are
compared by. Requests/s are averaged geometrically, since what is asked of them is a factor."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from statistics import fmean, geometric_mean
from typing import Any, Literal

from msgspec.structs import asdict, replace

from workerlab.model import Breakdown, Cell, CellResult, Summary, Usage
from workerlab.numbers.intervals import Ratio, ratio

CHANGES = 1.2  # times the requests/s: less is no effect

Effect = Literal["more", "less", "same", "chance", "few"]


class Pooled(CellResult, frozen=True):
    """`rates`: requests/s of each valid trial."""

    rates: tuple[float, ...] = ()


def pooled(cells: Iterable[CellResult]) -> list[Pooled]:
    """One of each cell, of its valid trials where it has some, in their order."""
    trials: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        trials.setdefault(cell.trial.cell, []).append(cell)
    return [_pooled(mine) for mine in trials.values()]


def _pooled(trials: Sequence[CellResult]) -> Pooled:
    valid = [cell for cell in trials if cell.verdict != "invalid" and cell.throughput_rps]
    one, rates = (valid or trials)[0], tuple(cell.throughput_rps or 0.0 for cell in valid)
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    found = Pooled(**fields, rates=rates)
    if len(valid) < 2:
        return found
    bound = [cell.generator_bound for cell in valid if cell.generator_bound is not None]
    waits = [cell.core_wait for cell in valid if cell.core_wait is not None]
    return replace(
        found,
        throughput_rps=geometric_mean(rates),
        verdict=Counter(cell.verdict for cell in valid).most_common(1)[0][0],
        failed=sum(cell.failed or 0 for cell in valid),
        errors=dict(sum((Counter(cell.errors) for cell in valid), Counter[str]())),
        generator_bound=2 * sum(bound) > len(bound) if bound else None,
        core_wait=max(waits, key=attrgetter("share"), default=None),
        achieved_concurrency=_mean(valid, attrgetter("achieved_concurrency")),
        response=_means(Summary, [cell.response for cell in valid]),
        service=_means(Summary, [cell.service for cell in valid]),
        breakdown=replace(
            _means(Breakdown, [cell.breakdown for cell in valid]),
            exact=one.breakdown.exact,
            sources=one.breakdown.sources,
        ),
        usage=_means(Usage, [cell.usage for cell in valid]),
    )


def _mean(every: Iterable[Any], of: Callable[[Any], float | None]) -> float | None:
    known = [value for one in every if (value := of(one)) is not None]
    return fmean(known) if known else None


def _means(kind: Any, every: Sequence[Any]) -> Any:
    """Field by field; what is no number stays out."""
    names = [name for name, value in asdict(every[0]).items() if not isinstance(value, dict | bool)]
    return kind(**{name: _mean(every, attrgetter(name)) for name in names})


def change(usual: Pooled, other: Pooled) -> Ratio:
    """Throughput of the other over that of the usual one, over their trials."""
    return ratio(other.rates, usual.rates)


def effect(changes: Iterable[Ratio]) -> Effect:
    """What a factor does to throughput, by the intervals: "same" where all are within CHANGES,
    "few" where there is none."""
    known = [(one.low, one.high) for one in changes if one.low is not None and one.high is not None]
    if not known:
        return "few"
    if any(low > CHANGES for low, _ in known):
        return "more"
    if any(high < 1 / CHANGES for _, high in known):
        return "less"
    same = all(low > 1 / CHANGES and high < CHANGES for low, high in known)
    return "same" if same else "chance"
