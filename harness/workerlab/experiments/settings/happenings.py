"""What is no setting but happens to every server, from what the launches saw. Pure."""

from workerlab.experiments.settings.effect import Effect, Evidence, Setting
from workerlab.experiments.settings.launches import disturbances, slots, times


def _silent(seen: Evidence) -> Effect:
    found = seen["silent"]
    values = {"closed_s": found["closed_s"], "watched_s": times.SILENT_S}
    values |= {"timeout_s": times.TIMEOUT_S}
    which = "killed" if found["killed"] else "open" if found["closed_s"] is None else "closed"
    return Effect(None, f"silent.{which}", values)


def _lingering(seen: Evidence) -> Effect:
    found = seen["lingering"]
    waits_s = [one - found["free_s"] for one in found["behind_s"]]
    held = sum(one > slots.HELD_S for one in waits_s)
    values = {"held_s": max(waits_s), "held": held, "tries": len(waits_s)}
    return Effect(None, "lingering.held" if held else "lingering.free", values)


def _crowd(seen: Evidence) -> Effect:
    found = seen["crowded"]
    values = {"connections": disturbances.CROWD, "silent_s": disturbances.CROWD_S}
    if found["status"] == 200:
        return Effect(None, "crowd.free", values)
    return Effect(None, "crowd.wedged", {**values, "watched_s": disturbances.PATIENCE_S})


def _under_way(seen: Evidence) -> Effect:
    found = seen["under_way"]
    values = {
        "asked": disturbances.LIMIT, "grace_s": disturbances.GRACE_S,
        "under_way_s": disturbances.UNDER_WAY_S, "took_s": found["took_s"],
    }  # fmt: skip
    if not found["replaced"]:
        return Effect(None, "under_way.none", values)
    return Effect(None, f"under_way.{'passed' if found['status'] == 200 else 'cut'}", values)


def _reload(seen: Evidence) -> Effect:
    found, asked = seen["reload"], disturbances.BACKLOG_AFTER
    values = {"asked": asked, "before": found["before"], "after": found["after"]}
    if found["replaced_s"] is None:
        return Effect(None, "reload.none", {"watched_s": disturbances.REPLACED_S})
    return Effect(None, f"reload.{'changed' if found['after'] == asked else 'kept'}", values)


# Of their effects, those that somebody should know of who did not ask
HARMFUL = ("silent.killed", "silent.open", "crowd.wedged", "lingering.held", "under_way.cut")
HAPPENINGS = (
    Setting("silent", ("silent",), _silent, happens=True),
    Setting("crowd", ("crowded",), _crowd, happens=True),
    Setting("lingering", ("lingering",), _lingering, happens=True),
    Setting("under_way", ("under_way",), _under_way, happens=True),
    Setting("reload", ("reload",), _reload, happens=True),
)
