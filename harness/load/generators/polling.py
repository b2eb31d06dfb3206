"""Which sockets are ready: epoll where there is one, else poll(), which every Unix has."""

from __future__ import annotations

import contextlib
import select

READ, WRITE = select.POLLIN, select.POLLOUT  # epoll has the same numbers for them


class Epoll:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.register, self.modify = self._epoll.register, self._epoll.modify
        self.close = self._epoll.close

    def wait(self, for_s: float, *, fine: bool) -> list[tuple[int, int]]:
        """(file, events) of what is ready, after `for_s` at most. `fine`: not rounded up to whole
        milliseconds, as epoll does; select() does not, and one file is all it has to look at."""
        if fine:
            select.select([self._epoll.fileno()], [], [], for_s)
            return self._epoll.poll(0)
        return self._epoll.poll(for_s)

    def forget(self, fd: int) -> None:
        """Nothing to do: a closed file is forgotten."""


class Poll:
    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify

    def wait(self, for_s: float, *, fine: bool) -> list[tuple[int, int]]:
        """As Epoll's, always in milliseconds."""
        return self._poll.poll(for_s * 1000)

    def forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)

    def close(self) -> None:
        """Nothing to do: it is no file."""


def poller() -> Epoll | Poll:
    return Epoll() if hasattr(select, "epoll") else Poll()
