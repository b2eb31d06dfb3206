"""What is known of one trial when its analysis begins: stored facts and the tool's own words."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.model import (
    ANY_CLASS,
    Measurement,
    NullCounts,
    Observations,
    Record,
    Spans,
    Trial,
    WorkerClass,
)


@dataclass(frozen=True)
class TrialData:
    """One trial, as read from its run. Nothing in here is derived.

    `record` None: the trial has not been run to its end. `measurement` None: the tool's output
    could not be read, and `parse_error` says why, or there was none.
    """

    trial: Trial
    record: Record | None
    measurement: Measurement | None
    parse_error: str | None
    spans: Spans
    app: str
    sleep_s: float | None
    lone_first: bool  # the first request is sent alone (ab)
    counted: bool  # the load is a number of requests; False: for a time
    expect_status: int = 200
    worker_class: WorkerClass = ANY_CLASS
    observations: Observations = field(default_factory=Observations)
    ramp_s: float = 0.0  # the connections begin one after the other over this time
    units: int = 1  # cores that the load tool can keep busy at most: its threads or processes
    elsewhere: bool = False  # the load comes from other hosts, whose CPU nobody sees here
    body_sha256: str | None = None  # of the only right answer, where it is known beforehand
    null: NullCounts | None = None  # what the null server counted, where there is one

    @property
    def slots_configured(self) -> int | None:
        """None: unlimited, or not known to its class."""
        return self.worker_class.slots_of(self.trial.cell.server)
