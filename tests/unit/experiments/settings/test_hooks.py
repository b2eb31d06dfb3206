"""The workers that get a signal to test a hook, and how long the hook is awaited."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from workerlab.experiments.settings.common_launches import _hooks


class SlowSite:
    """A site on a slow machine: a worker that gets a signal calls its hook, exits and is replaced
    one step at a time. `hooks`: the ones that its class honours."""

    def __init__(self, *hooks: str, stop_s: float | None = 1.0) -> None:
        self.hooks, self.stop_s = hooks, stop_s
        self.pids = [32_767, 12]  # the older first: pids have wrapped around
        self.sent = list[tuple[int, int]]()
        self._called = list[list[str]]()

    def kill(self, pid: int, number: int) -> None:
        self.sent.append((pid, number))

    def called_hooks(self) -> list[list[str]]:
        return self._called

    def require(self, condition: Callable[[], object], what: str) -> None:
        assert not condition(), what
        pid, number = self.sent[-1]
        hook = {signal.SIGINT: "worker_int", signal.SIGABRT: "worker_abort"}[signal.Signals(number)]
        steps: list[Callable[[], object]] = [
            lambda: self._called.append([hook, "None"]) if hook in self.hooks else None,
            lambda: self.pids.remove(pid) if pid in self.pids else None,
            lambda: self.pids.append(pid + 100),
        ]
        for step in steps:
            step()
            if condition():
                return
        raise AssertionError(what)

    def stop(self) -> float | None:
        return self.stop_s


def hooks_of(site: SlowSite, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(os, "kill", site.kill)
    return _hooks(site)


@pytest.mark.parametrize("hooks", [(), ("worker_int", "worker_abort")])
def test_no_worker_gets_a_second_signal_and_a_late_hook_counts(
    hooks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = SlowSite(*hooks)
    assert hooks_of(site, monkeypatch) == sorted(hooks)
    assert site.sent == [(32_767, signal.SIGINT), (12, signal.SIGABRT)]


def test_a_server_that_had_to_be_killed_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="did not end in time"):
        hooks_of(SlowSite(stop_s=None), monkeypatch)
