"""Fixtures for the code that runs inside workers."""

from __future__ import annotations

import os

import pytest

from workerlab.server.inside import probe


@pytest.fixture
def _no_fork_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork hooks cannot be unregistered, and would run in every later child."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)


@pytest.fixture
def _restored_probe(monkeypatch: pytest.MonkeyPatch, _no_fork_hooks: None) -> None:
    """No accepts are recorded yet, and the probe's globals are restored after the test."""
    monkeypatch.setattr(probe, "accepted", {})
    for name in ("cells", "take", "first_request", "has_names", "look_up"):
        monkeypatch.setattr(probe, name, getattr(probe, name))
