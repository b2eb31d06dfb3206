"""The types of effects and settings, and the effects of events that every server encounters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from workerlab.experiments.settings import common_launches, launches
from workerlab.numbers.units import fill

Word = Literal["honoured", "ignored", "clamped", "changes"]
Evidence = Mapping[str, Mapping[str, Any]]  # observations by launch


# The values that the launches tried, by the names of their constants
TRIED_VALUES = {**vars(common_launches), **vars(launches)}


class Effect(Struct, frozen=True):
    """`word`: None for an event, which is not a setting. `sentence`: template of the observation,
    filled from `values` and TRIED_VALUES; `cell_text`: text in the matrix instead of the word."""

    word: Word | None
    code: str
    sentence: str
    values: Mapping[str, Any] = {}
    cell_text: str = ""

    @property
    def observation(self) -> str:
        return fill(self.sentence, {**TRIED_VALUES, **self.values})

    @property
    def cell(self) -> str:
        """The text in the matrix."""
        if self.cell_text or self.word is None:
            return fill(self.cell_text, self.values)
        return "changes meaning" if self.word == "changes" else self.word


class Setting(Struct, frozen=True):
    """An examined setting: the launches that test it, and how to conclude its effect. `event`: the
    label if this is an event rather than a setting."""

    name: str
    launches: tuple[str, ...]
    effect: Callable[[Evidence], Effect]
    event: str = ""

    @property
    def label(self) -> str:
        return self.event or self.name


def _silent(evidence: Evidence) -> Effect:
    launch = evidence["silent"]
    if launch["killed"]:
        sentence = "the worker was killed (timeout {TIMEOUT_S} s)"
        return Effect(None, "silent.killed", sentence, cell_text="worker killed")
    none_killed = ", and no worker was killed"
    if launch["closed_s"] is None:
        sentence = (
            "the connection was still open after {SILENCE_S:duration} (timeout {TIMEOUT_S} s)"
        )
        return Effect(None, "silent.open", sentence + none_killed, cell_text="stays open")
    sentence = f"the connection was closed after {{closed_s:duration}}{none_killed} (timeout"
    sentence += " {TIMEOUT_S} s)"
    return Effect(None, "silent.closed", sentence, launch, "closed after {closed_s:duration}")


def _lingering(evidence: Evidence) -> Effect:
    launch = evidence["lingering"]
    waits_s = [wait_s - launch["free_s"] for wait_s in launch["behind_s"]]
    held_count = sum(wait_s > launches.MIN_HELD_S for wait_s in waits_s)
    if not held_count:
        sentence = "the next request never waited for it"
        return Effect(None, "lingering.free", sentence, cell_text="worker is free")
    values = {"held_s": max(waits_s), "held": held_count, "tries": len(waits_s)}
    sentence = (
        "the next request waited for the only worker in {held} of {tries} attempts, up to"
        " {held_s:duration}"
    )
    return Effect(None, "lingering.held", sentence, values, "worker held {held_s:duration}")


def _crowd(evidence: Evidence) -> Effect:
    sentence = "{SILENT_CLIENTS} clients connected, sent nothing for {SILENT_S:duration} and left;"
    if evidence["crowded"]["status"] == 200:
        sentence += " the next request was answered"
        return Effect(None, "crowd.free", sentence, cell_text="serves others")
    sentence += " the next request received no response within {RESPONSE_WAIT_S:duration}"
    return Effect(None, "crowd.wedged", sentence, cell_text="serves no one")


def _under_way(evidence: Evidence) -> Effect:
    launch = evidence["under_way"]
    if not launch["replaced"]:
        return Effect(None, "under_way.none", "no worker was replaced", cell_text="not seen")
    if launch["status"] == 200:
        sentence = (
            "a request of {ONGOING_S:duration} was answered, while other requests reached the limit"
            " of {RECYCLE_LIMIT} (graceful_timeout {GRACE_S} s), and then the worker was replaced"
        )
        return Effect(None, "under_way.passed", sentence, cell_text="answered")
    sentence = (
        "a request of {ONGOING_S:duration} was cut off after {took_s:duration}: other requests had"
        " reached the limit of {RECYCLE_LIMIT} (graceful_timeout {GRACE_S} s)"
    )
    return Effect(None, "under_way.cut", sentence, launch, "cut")


def _sighup(evidence: Evidence) -> Effect:
    launch = evidence["reload"]
    if launch["replaced_s"] is None:
        sentence = "no worker was replaced within {EVENT_TIMEOUT_S:duration}"
        return Effect(None, "reload.none", sentence, cell_text="not seen")
    sentence = (
        "the file then set backlog to {BACKLOG_AFTER}; workers were replaced, and the kernel's"
        " limit of the accept queue"
    )
    if launch["after"] != launches.BACKLOG_AFTER:
        sentence += " became {after}" if launch["after"] != launch["before"] else " stayed {after}"
        return Effect(None, "reload.kept", sentence, launch, "unchanged")
    sentence += " went from {before} to {after}"
    return Effect(None, "reload.changed", sentence, launch, "applied")


# Effects that the summary of a class spells out
HARMFUL = ("silent.killed", "silent.open", "crowd.wedged", "lingering.held", "under_way.cut")
EVENTS = (
    Setting("silent", ("silent",), _silent, "a client that sends nothing"),
    Setting("crowd", ("crowded",), _crowd, "silent clients, as many as worker_connections"),
    Setting("lingering", ("lingering",), _lingering, "a client that closes late"),
    Setting(
        "under_way",
        ("under_way",),
        _under_way,
        "max_requests, reached while a request is in progress",
    ),
    Setting("sighup", ("reload",), _sighup, "SIGHUP, with another backlog in the file"),
)
