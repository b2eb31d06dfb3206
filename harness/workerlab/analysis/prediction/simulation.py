"""A schedule of requests, some of which wait and some compute, played on a server that does not
exist yet.

Where requests only wait, this is the recursion of Kiefer and Wolfowitz, and gives the same to the
last digit. What is added are the three things that make a worker more than a number of slots:

- **Who takes a request.** Either any free slot, from the kernel's queue; or a worker accepts it at
  once, and there it waits for a slot even while another worker idles (`hoards`).
- **The GIL.** Threads of a worker compute in turns of 5 ms, as Python hands it on. An event loop
  serves one piece after the other, and accepts only between two rounds of them: one connection, or,
  if it hoards, all there are.
- **The cores.** All workers together have `cores`; each that has work to do gets its equal part.

Equal parts need no small steps: `work` is a clock that runs as fast as any worker computes, so that
a turn ends at a fixed moment of it, however many others begin or end meanwhile: O(n log n).
Rejected: processor sharing among threads. It is what turns come to where requests compute for much
longer than 5 ms, but 5 ms of CPU on a GIL that is busy half of the time would take 10 ms of a slot
instead of 7.5, and slots would be full that are not.

Left out: the kernel's scheduler, whose turns of some milliseconds are not equal parts; how long it
takes to wake up a thread; a request's own order of computing and waiting. A loop computes one part
of a request's CPU before it waits and the other after; threads compute it all before.
"""

from collections.abc import Sequence
from random import Random

from workerlab.analysis.prediction.events import Layout
from workerlab.analysis.prediction.loops import Loops
from workerlab.analysis.prediction.threads import Threads
from workerlab.model import RequestNeed


def simulate(
    arrivals_s: Sequence[float], requests: Sequence[RequestNeed], layout: Layout, rng: Random
) -> list[float]:
    """Seconds that each request takes, by arrival; `arrivals_s` in ascending order. `rng` deals."""
    if len(arrivals_s) != len(requests):
        raise ValueError(f"{len(arrivals_s)} arrivals of {len(requests)} requests")
    kind = Loops if layout.loop else Threads
    return kind(arrivals_s, requests, layout, rng).run()
