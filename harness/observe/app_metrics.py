"""What an app counts about itself while it is loaded: the ledgers its workers keep in the trial's
directory, added up. An app that keeps none has nothing to say."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from apps.blog import ledger
from harness.model import AppMetricsSample

FILES = "blog-*.ledger"


class Ledgers:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sample(self) -> AppMetricsSample | None:
        """None where there are none. Those of workers that have ended still count. Raises OSError,
        or ValueError for a file that is none."""
        # An empty one was made a moment ago
        paths = [path for path in self._directory.glob(FILES) if path.stat().st_size]
        if not paths:
            return None
        totals: Counter[str] = Counter(dict.fromkeys(ledger.NAMES, 0))
        at_ns = time.monotonic_ns()
        for path in paths:
            totals.update(ledger.read(path))
        return AppMetricsSample(at_ns, dict(totals))
