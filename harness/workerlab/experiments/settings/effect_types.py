"""Types of effects and settings, and the effects of events that every server meets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from workerlab.experiments.settings.launches import slots, times
from workerlab.numbers.units import fill

Word = Literal["honoured", "ignored", "clamped", "changes"]
Evidence = Mapping[str, Mapping[str, Any]]  # observations by launch


class Effect(Struct, frozen=True):
    """`word`: None for an event, which is no setting. `sentence`: template of the observation;
    `shown`: text in the matrix instead of the word."""

    word: Word | None
    code: str
    sentence: str
    values: Mapping[str, Any] = {}
    shown: str = ""

    @property
    def observation(self) -> str:
        return fill(self.sentence, self.values)

    @property
    def cell(self) -> str:
        """Its text in the matrix."""
        if self.shown or self.word is None:
            return fill(self.shown, self.values)
        return WORDS[self.word]


WORDS: Mapping[Word, str] = {
    "honoured": "honoured",
    "ignored": "ignored",
    "clamped": "clamped",
    "changes": "changes meaning",
}


class Setting(Struct, frozen=True):
    """An examined setting: the launches that test it, and the conclusion. `happening`: label of an
    event that is not a setting."""

    name: str
    launches: tuple[str, ...]
    effect: Callable[[Evidence], Effect]
    happening: str = ""

    @property
    def label(self) -> str:
        return self.happening or self.name


def _silent(evidence: Evidence) -> Effect:
    launch = evidence["silent"]
    values = {"closed_s": launch["closed_s"], "watched_s": times.SILENT_S}
    values |= {"timeout_s": times.TIMEOUT_S}
    if launch["killed"]:
        sentence = "the worker was killed (timeout {timeout_s} s)"
        return Effect(None, "silent.killed", sentence, values, "worker killed")
    unharmed = ", and no worker was killed"
    if launch["closed_s"] is None:
        sentence = (
            "the connection was still open after {watched_s:duration} (timeout {timeout_s} s)"
        )
        return Effect(None, "silent.open", sentence + unharmed, values, "stays open")
    sentence = f"the connection was closed after {{closed_s:duration}}{unharmed} (timeout"
    sentence += " {timeout_s} s)"
    return Effect(None, "silent.closed", sentence, values, "closed after {closed_s:duration}")


def _lingering(evidence: Evidence) -> Effect:
    launch = evidence["lingering"]
    waits_s = [wait_s - launch["free_s"] for wait_s in launch["behind_s"]]
    held = sum(wait_s > slots.HELD_S for wait_s in waits_s)
    values = {"held_s": max(waits_s), "held": held, "tries": len(waits_s)}
    if not held:
        sentence = "the next request never waited for it"
        return Effect(None, "lingering.free", sentence, values, "worker is free")
    sentence = (
        "the next request waited up to {held_s:duration} for the only worker, {held} times of"
    )
    sentence += " {tries}"
    return Effect(None, "lingering.held", sentence, values, "worker held {held_s:duration}")


def _crowd(evidence: Evidence) -> Effect:
    launch = evidence["crowded"]
    values = {"connections": times.CROWD, "silent_s": times.CROWD_S}
    sentence = "{connections} clients connected, sent nothing for {silent_s:duration} and left; the"
    if launch["status"] == 200:
        sentence += " next request was answered"
        return Effect(None, "crowd.free", sentence, values, "serves others")
    sentence += " next request had no answer within {watched_s:duration}"
    values["watched_s"] = times.PATIENCE_S
    return Effect(None, "crowd.wedged", sentence, values, "serves nobody")


def _under_way(evidence: Evidence) -> Effect:
    launch = evidence["under_way"]
    values = {
        "value": times.LIMIT, "grace_s": times.GRACE_S,
        "under_way_s": times.UNDER_WAY_S, "took_s": launch["took_s"],
    }  # fmt: skip
    if not launch["replaced"]:
        return Effect(None, "under_way.none", "no worker was replaced", values, "not seen")
    if launch["status"] == 200:
        sentence = (
            "a request of {under_way_s:duration} was answered, while others reached the limit of"
            " {value} (graceful_timeout {grace_s} s), and then the worker was replaced"
        )
        return Effect(None, "under_way.passed", sentence, values, "it is answered")
    sentence = (
        "a request of {under_way_s:duration} was cut after {took_s:duration}: others had reached"
        " the limit of {value} (graceful_timeout {grace_s} s)"
    )
    return Effect(None, "under_way.cut", sentence, values, "it is cut")


def _sighup(evidence: Evidence) -> Effect:
    launch, value = evidence["reload"], times.BACKLOG_AFTER
    values = {"value": value, "before": launch["before"], "after": launch["after"]}
    if launch["replaced_s"] is None:
        sentence = "no worker was replaced within {watched_s:duration}"
        values = {"watched_s": times.REPLACED_S}
        return Effect(None, "reload.none", sentence, values, "not seen")
    sentence = (
        "the file asked for {value} then, workers were replaced, and the kernel's limit of the"
    )
    if launch["after"] != value:
        changed = launch["after"] != launch["before"]
        sentence += " accept queue " + ("became {after}" if changed else "stayed {after}")
        return Effect(None, "reload.kept", sentence, values, "stays as it was")
    sentence += " accept queue went from {before} to {after}"
    return Effect(None, "reload.changed", sentence, values, "heeded")


# Effects that the summary of a class spells out
HARMFUL = ("silent.killed", "silent.open", "crowd.wedged", "lingering.held", "under_way.cut")
HAPPENINGS = (
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
