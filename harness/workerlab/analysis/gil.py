"""How much of what requests compute needs no GIL: 1 - (part of the time in which the GIL was held)
/ (part of the time in which they computed, or were ready to), both while a request was in the app.

Who holds the GIL and loses its core holds it all the same, so waiting for a core is on both sides.
A look sees no hold of less than 0.3 ms. An app that computes in short pieces, between queries of a
database for instance, would look as if it never held it: nothing is said where a piece lasts less
than a millisecond on average. Nor is anything said where several requests were in one worker at
once, for any of them may have held it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt

from workerlab.analysis.samples import NS
from workerlab.model import Span, SpanCost

PIECE_S = 0.001
ENOUGH = 30  # looks that should have found it held
LESS = 0.7  # of that time: more than that, with two standard errors, is no evidence


def beside_gil(spans: Sequence[Span]) -> Mapping[int | None, float]:
    """By route: the part of its CPU, where it is significant."""
    by_route: dict[int | None, list[tuple[Span, SpanCost]]] = defaultdict(list)
    for span in spans:
        if span.cost is not None and span.cost.looks:
            by_route[span.cost.route].append((span, span.cost))
    found = {route: _share(of) for route, of in by_route.items()}
    return {route: share for route, share in found.items() if share > 0}


def _share(found: Sequence[tuple[Span, SpanCost]]) -> float:
    looks, held = sum(one.looks for _, one in found), sum(one.held for _, one in found)
    cpu_s = sum(one.cpu_ns for _, one in found) / NS
    lasted_s = sum((span.end_ns or span.start_ns) - span.start_ns for span, _ in found) / NS
    pieces = sum(1 + one.slept for _, one in found)
    computing = (cpu_s + sum(one.queued_ns for _, one in found) / NS) / max(lasted_s, 1 / NS)
    if cpu_s / pieces < PIECE_S or looks * computing < ENOUGH:
        return 0.0
    seen = held / looks
    error = sqrt(max(seen, 1 / looks) * (1 - seen) / looks)
    return 1 - seen / computing if seen + 2 * error < LESS * computing else 0.0
