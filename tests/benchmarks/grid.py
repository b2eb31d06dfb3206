"""Whether the search of `advise` missed a better candidate: all of them are launched at a rate that
is 5 % above what the recommended one keeps the target at, measured again beside them.

    python -m tests.benchmarks.grid [--apps waits,pool] [--out DIR]

DIR is that of `advised`, whose runs it goes on from; where it has none of an app, `advise` is
run first. A candidate that breaks the target in a launch of 5 s is out; one that keeps it is
launched three times for 10 s, on other schedules; one that keeps it in all three is raised by 5 %
at a time as long as three launches keep it. The one that goes furthest is measured afresh at its
rate. What was recommended goes through the same first, for it may reach further than the search
could show, and once more right after the one that went furthest: a machine is not as fast in each
hour. Not launched are those that Little's law rules out: fewer slots than requests that wait at
once.
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

LOOK_S, SECONDS, LAUNCHES, MAX_VOIDS = 5.0, 10.0, 3, 5
FIRST_SEED = 700_000


class Grid:
    """Launches of an app's candidates."""

    def __init__(self, name: str, out: Path) -> None:
        self.name, self.out = name, out
        self.case: Case = CASES[name]
        self.seeds = count(FIRST_SEED)
        self.launches = 0
        self.undecided: list[str] = []  # candidates that other programs left nothing of

    def search(self) -> Search:
        place = self.out / "runs" / self.name
        if not place.exists():
            advise(self.name, self.case, self.out, "5m")
        run = run_store.load(max(place.iterdir(), key=lambda path: path.stat().st_mtime))
        return search_of(study_of(run), run.plan)

    def keeps(self, server: Server, rps: float, launches: int, seconds: float = SECONDS) -> bool:
        """In each of so many launches. One that broke it beside other programs is repeated; a
        candidate with only such launches is undecided, and out."""
        file = self.out / "grid" / self.name / "gunicorn.conf.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        own = Path(self.case.more[1]) if "--config" in self.case.more else None
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

    def furthest(self, server: Server, rps: float) -> float:
        """The highest rate, from `rps` on, at which all launches keep the target; 0: none."""
        highest = 0.0
        if not self.keeps(server, rps, 1, LOOK_S):
            return highest
        while self.keeps(server, rps, LAUNCHES):
            highest, rps = rps, rounded(rps * BETTER_RATIO)
        return highest

    def again(self, server: Server, rps: float) -> float:
        """The highest rate of one that was seen to keep the target up to about `rps`."""
        highest = self.furthest(server, rounded(rps * BETTER_RATIO))
        while not highest and not self.keeps(server, rps, LAUNCHES):
            rps = rounded(rps / BETTER_RATIO)
        return highest or rps

    def afresh(
        self, reaches: Mapping[str, float], servers: Mapping[str, Server]
    ) -> tuple[str, float]:
        """Who goes furthest, and how far: measured once more, since the highest of many is so by
        luck, too; at 5 % less, or the next one, where it does not hold."""
        left = dict(reaches)
        while True:
            best = max(left, key=lambda key: left[key])
            if self.keeps(servers[best], left[best], LAUNCHES):
                return best, left[best]
            left[best] = rounded(left[best] / BETTER_RATIO)


def kept_by(search: Search, server: Server) -> float | None:
    """The highest rate at which all launches of the search kept the target, below any at which one
    broke it: by the same rule as here, and not by what the next launch is promised."""
    tried: dict[float, list[bool]] = {}
    for attempt in search.study.launches_of(server):
        tried.setdefault(attempt.rps, []).append(meets_target(attempt, search.terms))
    broken = min((rps for rps, kept in tried.items() if not all(kept)), default=math.inf)
    return max((rps for rps in tried if rps < broken), default=None)


def possible(search: Search, rps: float) -> Sequence[Server]:
    """Those with as many slots as requests that wait at once: Little's law."""

    def fits(server: Server) -> bool:
        slots = configured_slots(server)
        requests = search.study.needs[server.worker_class].requests
        wait_s = fmean(request.wait_s for request in requests)
        return slots is None or slots >= rps * wait_s

    return list(filter(fits, search.servers))


def explore(name: str, out: Path, least: float = 0.0) -> dict[str, object]:
    """`least`: the lowest rate that the others are tried at, where the search's is far too low."""
    grid = Grid(name, out)
    search = grid.search()
    winner = search.winner()
    if winner is None or (reached := kept_by(search, winner)) is None:
        return {"app": name, "winner": None}
    again = grid.again(winner, max(reached, least / BETTER_RATIO))
    mark = rounded(again * BETTER_RATIO)  # where another one would be better, in this hour
    able = {winner: None, **dict.fromkeys(possible(search, mark))}
    reaches = {winner.key: again}
    print(name, winner.key, f"{reached:g}", f"{again:g}", flush=True)
    for server in able:
        highest = 0.0 if server == winner else grid.furthest(server, mark)
        if highest:
            reaches[server.key] = highest
        print(name, server.key, f"{mark:g}", f"{highest:g}", flush=True)
    best, afresh = grid.afresh(reaches, {server.key: server for server in able})
    beside = afresh if best == winner.key else grid.again(winner, again)
    return {
        "app": name, "winner": winner.key, "reached": reached, "again": again, "at": mark,
        "candidates": len(search.servers), "possible": len(able), "launches": grid.launches,
        "of_the_search": len(search.study.launches), "kept": reaches, "best": best,
        "afresh": afresh, "beside": beside, "undecided": grid.undecided,
        "reached_by_best": reached / afresh, "beside_by_best": beside / afresh,
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
