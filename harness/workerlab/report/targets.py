"""What a sweep found of its target: a word per cell; per series the highest level, and the highest
rate, that keeps it, and which term breaks first beyond.

A level keeps a target where each of its valid trials does. A series keeps it where some level does;
if it has cells at a rate, some rate: its closed cells are there to find the capacity, and the
highest of them is to wait.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from workerlab.model import Cell, CellResult, Finding
from workerlab.report.naming import Names, level

WORST = ("target.broken", "target.undecidable", "target.not_shown")
Trials = Sequence[CellResult]


def target_word(cell: CellResult) -> Finding | None:
    """'met', or 'broken: p95, errors'; None where there is no target, or the cell is invalid."""
    return _word(cell.target) if cell.target else None


def _word(outcomes: Sequence[Finding]) -> Finding:
    for code in WORST:
        if metrics := tuple(one.values["metric"] for one in outcomes if one.code == code):
            return Finding(f"value.{code}", {"metrics": metrics})
    return Finding("value.target.met")


def target_findings(mine: Trials, names: Names) -> tuple[Finding, ...]:
    """Of a series: of its levels, and of its rates. () where there is no target."""
    if not any(cell.target for cell in mine):
        return ()
    closed = _levels(cell for cell in mine if cell.trial.cell.rate is None)
    at_rate = _levels(cell for cell in mine if cell.trial.cell.rate is not None)
    kinds = {"levels": closed, "rates": at_rate}
    return tuple(_of_levels(kind, levels, names) for kind, levels in kinds.items() if levels)


def target_kept(series: Collection[Sequence[Finding]]) -> bool | None:
    """Whether each series keeps the target, by its `target_findings`, those of rates last; one
    without a valid cell does not. None: there is no target."""
    if not any(series):
        return None
    return all(found and found[-1].code.startswith("target.kept") for found in series)


def _levels(cells: Iterable[CellResult]) -> Mapping[Cell, Trials]:
    """Valid trials by what was asked for, from low to high."""
    found: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        if cell.target:
            found.setdefault(cell.trial.cell, []).append(cell)
    return found


def _of_levels(kind: str, levels: Mapping[Cell, Trials], names: Names) -> Finding:
    keeping = [place for place, trials in enumerate(levels.values()) if all(map(_keeps, trials))]
    highest = keeping[-1] if keeping else None
    above = list(levels.values())[0 if highest is None else highest + 1 :]
    first = next(cell for trials in levels.values() for cell in trials)
    values = {
        "name": names.series(first.trial.cell),
        "target": ",".join(one.values["term"] for one in first.target),
        "next": tuple(_beyond(above)),
    }
    if highest is not None:
        values["highest"] = _load(list(levels.values())[highest][0])
        values["last"] = None if above else "the highest measured"
    broken = all(_has(trials, "target.broken") for trials in above)
    code = "kept" if keeping else "broken" if broken else "not_shown"
    keys = tuple(cell.trial.key for trials in levels.values() for cell in trials)
    evidence = tuple(_evidence(cell, names) for trials in levels.values() for cell in trials)
    return Finding(f"target.{code}.{kind}", values, keys, evidence)


def _keeps(cell: CellResult) -> bool:
    return all(one.code == "target.met" for one in cell.target)


def _has(trials: Trials, code: str) -> bool:
    return any(one.code == code for cell in trials for one in cell.target)


def _beyond(levels: Sequence[Trials]) -> Iterable[Finding]:
    """The first of these levels and why it does not keep the target; and the first that breaks it,
    where that is another one."""
    for place, trials in enumerate(levels):
        if broken := _has(trials, "target.broken"):
            yield _breaks(trials)
        elif place == 0:
            yield Finding("target.at", {"level": _load(trials[0]), "outcomes": _failing(trials)})
        if broken:
            return


def _breaks(trials: Trials) -> Finding:
    outcomes = [one for one in _failing(trials) if one.code == "target.broken"]
    broken = sum(_has([cell], "target.broken") for cell in trials)
    values = {
        "level": _load(trials[0]),
        "terms": tuple(one.values["term"] for one in outcomes),
        "n": len(outcomes),
        "measured": tuple(one.values["measured"] for one in outcomes),
        "broken": broken if len(trials) > 1 else None,
        "trials": len(trials),
    }
    return Finding("target.breaks", values)


def _failing(trials: Trials) -> tuple[Finding, ...]:
    """Of each term that is not met the worst outcome, in the words of its first trial."""
    found: dict[str, Finding] = {}
    for code in WORST:
        for one in (one for cell in trials for one in cell.target if one.code == code):
            found.setdefault(one.values["term"], one)
    return tuple(found.values())


def _load(cell: CellResult) -> Finding:
    """'4 connections', '80% of the capacity (3.2 requests/s)'."""
    named = level(cell.trial.cell, "load")
    return replace(named, values={**named.values, "asked_rps": cell.asked_rps})


def _evidence(cell: CellResult, names: Names) -> Finding:
    trial = cell.trial.number if names.trials else None
    values = {"level": _load(cell), "trial": trial, "outcomes": cell.target}
    return Finding("target.cell", values, (cell.trial.key,))
