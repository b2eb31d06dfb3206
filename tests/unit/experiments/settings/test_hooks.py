"""Which worker gets a signal, to see whether its hook is called."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from workerlab.experiments.settings.launches.common import _hooks


class SlowSite:
    """On a machine so slow that no worker ends, or is replaced, while somebody waits for it."""

    pids = (32_767, 12)  # the older first: numbers begin anew

    def called(self) -> list[list[str]]:
        return []

    def until(self, condition: Callable[[], object], seconds: float) -> None:
        assert seconds > 0
        assert not condition()

    def stop(self) -> None:
        pass


def test_no_worker_gets_a_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    assert _hooks(SlowSite()) == []  # type: ignore[arg-type]
    assert sent == [(32_767, signal.SIGINT), (12, signal.SIGABRT)]
