"""A load from several processes, which begin together; what they saw is added up.

Two pipes lead to all of them. The end of the one is the starting pistol; the end of the other says
that this process is gone, however it ended, and nothing of the load may outlive it.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

from harness.load.generators.document import Tally
from harness.load.generators.share import FORK, Share

SLACK_S = 2.0  # a process that has met its deadline needs a moment to say so

Work = Callable[[Share, Sequence[int]], Tally]


class Lost(OSError):
    """A process of the load ended without a word."""


def run(share: Share, work: Work, processes: int) -> Tally:
    """`work(share, units)` in each process, the numbers of the units dealt among them.

    Raises Lost where a process died: what it saw is not known, and so neither is the sum.
    """
    # At once, by the kernel: Python would lose an interrupt that comes as it forks
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()  # what is here now stays shared: no collection writes to it in a child
    pistol, lifeline = os.pipe(), os.pipe()
    children, results = [], []
    units = range(share.words.concurrency)
    try:
        for number in range(processes):
            result, told = FORK.Pipe(duplex=False)
            words = (share, work, units[number::processes], told, pistol, lifeline)
            child = FORK.Process(target=_child, args=words, daemon=True)
            child.start()
            told.close()
            children.append(child)
            results.append(result)
        os.close(pistol[1])
        return _collect(share, results)
    finally:
        for child in children:
            child.kill()
            child.join()
        os.close(lifeline[1])


def _child(
    share: Share,
    work: Work,
    units: Sequence[int],
    told: Connection,
    pistol: tuple[int, int],
    lifeline: tuple[int, int],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, whose end ends us
    os.close(pistol[1])
    os.close(lifeline[1])
    os.read(pistol[0], 1)
    threading.Thread(target=_follow, args=(lifeline[0],), daemon=True).start()
    told.send(work(share, units))


def _follow(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)


def _collect(share: Share, results: list[Connection]) -> Tally:
    tally, waiting = Tally(), list(results)
    while waiting:
        ready = wait(waiting, share.left_s() + SLACK_S)
        if not ready:
            raise Lost(f"{len(waiting)} of {len(results)} processes did not keep the deadline")
        for one in ready:
            assert isinstance(one, Connection)
            try:
                tally.add(one.recv())
            except EOFError:
                raise Lost("a process of the load ended without a word") from None
            waiting.remove(one)
    return tally
