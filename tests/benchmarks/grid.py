"""Did the search of `advise` miss a better candidate? All candidates are launched at 5 % above the
highest rate of the recommended one, which is measured again first.

    python -m tests.benchmarks.grid [--apps waits,pool] [--out DIR]

DIR is that of `advised`, whose runs are used; for an app without a run, `advise` runs first. A
candidate that meets the target in a launch of 5 s is launched three times for 10 s, on other
schedules; if it meets the target in all three, its rate is raised by 5 % until one of three
launches does not. The candidate with the highest rate is measured once more at that rate. The
recommended one is measured in the same way before all others, because it may reach more than the
search could show, and again after the best one, because the speed of a machine varies over hours.
Candidates that Little's law rules out, with fewer slots than waiting requests, are not launched.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import fmean

from tests.benchmarks.advised import CASES, Case, advise, is_disturbed, launch, python_of
from workerlab import run_store
from workerlab.experiments.advise.conf_file import OwnFile, conf_file
from workerlab.experiments.advise.search import BETTER_RATIO, Search, rounded, search_of
from workerlab.experiments.advise.study import meets_target, study_of
from workerlab.model.plan import Server
from workerlab.server.worker_classes import configured_slots

SHORT_S, SECONDS, LAUNCHES, MAX_VOIDS = 5.0, 10.0, 3, 5
FIRST_SEED = 700_000


class Grid:
    """Launches of an app's candidates."""

    def __init__(self, name: str, out: Path) -> None:
        self.name, self.out = name, out
        self.case: Case = CASES[name]
        self.seeds = count(FIRST_SEED)
        self.launches = 0
        self.undecided: list[str] = []  # candidates with only void launches

    def search(self) -> Search:
        runs = self.out / "runs" / self.name
        if not runs.exists():
            advise(self.name, self.case, self.out, "5m")
        run = run_store.load(max(runs.iterdir(), key=lambda path: path.stat().st_mtime))
        return search_of(study_of(run), run.plan)

    def keeps(self, server: Server, rps: float, launches: int, seconds: float = SECONDS) -> bool:
        """Whether all launches meet the target. One that breaks it while other programs use the
        cores is repeated; if there are too many of these, the candidate is undecided: False."""
        file = self.out / "grid" / self.name / "gunicorn.conf.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        own = Path(self.case.arguments[1]) if "--config" in self.case.arguments else None
        text = OwnFile(own.read_text(), str(own)) if own else OwnFile()
        file.write_text(conf_file(server, (), text))
        case = self.case._replace(rate=rps)
        python, kept, voids = python_of(self.name, self.out), 0, 0
        while kept < launches:
            result = launch(python, file, case, next(self.seeds), file.parent / "load", seconds)
            self.launches += 1
            kept += result["keeps"]
            if not result["keeps"]:
                if not is_disturbed(result):
                    return False
                voids += 1
                if voids > MAX_VOIDS:
                    self.undecided.append(f"{server.key} at {rps:g}")
                    return False
        return True

    def highest_rate(self, server: Server, rps: float) -> float:
        """The highest rate, from `rps` upwards, at which all launches meet the target, or 0."""
        highest = 0.0
        if not self.keeps(server, rps, 1, SHORT_S):
            return highest
        while self.keeps(server, rps, LAUNCHES):
            highest, rps = rps, rounded(rps * BETTER_RATIO)
        return highest

    def remeasured_rate(self, server: Server, rps: float) -> float:
        """The highest rate of a candidate that met the target up to about `rps`."""
        highest = self.highest_rate(server, rounded(rps * BETTER_RATIO))
        while not highest and not self.keeps(server, rps, LAUNCHES):
            rps = rounded(rps / BETTER_RATIO)
        return highest or rps

    def best(self, rates: Mapping[str, float], servers: Mapping[str, Server]) -> tuple[str, float]:
        """The best candidate and its rate. It is measured once more, because the highest of many
        rates is partly luck; if it fails, its rate is reduced by 5 %."""
        remaining = dict(rates)
        while True:
            best = max(remaining, key=lambda key: remaining[key])
            if self.keeps(servers[best], remaining[best], LAUNCHES):
                return best, remaining[best]
            remaining[best] = rounded(remaining[best] / BETTER_RATIO)


def kept_by(search: Search, server: Server) -> float | None:
    """The highest rate at which all launches of the search met the target, below any at which one
    did not: the rule of this benchmark, not the rate that the search recommends."""
    outcomes: dict[float, list[bool]] = {}
    for attempt in search.study.launches_of(server):
        outcomes.setdefault(attempt.rps, []).append(meets_target(attempt, search.terms))
    broken = min((rps for rps, kept in outcomes.items() if not all(kept)), default=math.inf)
    return max((rps for rps in outcomes if rps < broken), default=None)


def possible(search: Search, rps: float) -> Sequence[Server]:
    """Candidates with enough slots for the waiting requests, by Little's law."""

    def fits(server: Server) -> bool:
        slots = configured_slots(server)
        requests = search.study.needs[server.worker_class].requests
        wait_s = fmean(request.wait_s for request in requests)
        return slots is None or slots >= rps * wait_s

    return list(filter(fits, search.servers))


def explore(name: str, out: Path, least: float = 0.0) -> dict[str, object]:
    """`least`: the lowest rate at which the others are tried, if that of the search is far too
    low."""
    grid = Grid(name, out)
    search = grid.search()
    winner = search.winner()
    if winner is None or (search_rps := kept_by(search, winner)) is None:
        return {"app": name, "winner": None}
    before_rps = grid.remeasured_rate(winner, max(search_rps, least / BETTER_RATIO))
    better_rps = rounded(before_rps * BETTER_RATIO)
    candidates = {winner: None, **dict.fromkeys(possible(search, better_rps))}
    rates = {winner.key: before_rps}
    print(name, winner.key, f"{search_rps:g}", f"{before_rps:g}", flush=True)
    for server in candidates:
        highest = 0.0 if server == winner else grid.highest_rate(server, better_rps)
        if highest:
            rates[server.key] = highest
        print(name, server.key, f"{better_rps:g}", f"{highest:g}", flush=True)
    best, best_rps = grid.best(rates, {server.key: server for server in candidates})
    after_rps = best_rps if best == winner.key else grid.remeasured_rate(winner, before_rps)
    return {
        "app": name, "winner": winner.key, "search_rps": search_rps, "before_rps": before_rps,
        "better_rps": better_rps, "candidates": len(search.servers), "possible": len(candidates),
        "launches": grid.launches, "search_launches": len(search.study.launches), "rates": rates,
        "best": best, "best_rps": best_rps, "after_rps": after_rps, "undecided": grid.undecided,
        "search_by_best": search_rps / best_rps, "after_by_best": after_rps / best_rps,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apps", default=",".join(CASES))
    parser.add_argument("--out", type=Path, default=Path("advised"))
    parser.add_argument("--least", type=float, default=0.0, metavar="RPS")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for name in options.apps.split(","):
        result = explore(name, out, options.least)
        (out / f"{name}-grid.json").write_text(json.dumps(result, indent=1))
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
