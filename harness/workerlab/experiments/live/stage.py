"""The servers and the load of the live page, and its tabs and pupils.

One browser tab controls the lab, the others watch. When all tabs are closed, the servers stop. A
thread reads the servers' state twenty times a second and sends what is new.
"""

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from workerlab import codec
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.law import side_view
from workerlab.experiments.lesson.settings import (
    LIMITS,
    OWN_APPS,
    LoadSettings,
    Refused,
    ServerSettings,
    changed_load,
    changed_server,
)
from workerlab.experiments.lesson.steps import Lesson
from workerlab.experiments.lesson.words import no_outcome
from workerlab.experiments.live.classroom import Classroom, Put
from workerlab.experiments.live.recording import Recorder
from workerlab.experiments.live.side import Side
from workerlab.report.player.places import as_rows
from workerlab.server.limits import cores
from workerlab.server.worker_classes import CLASSES

TICK_S = 0.05
TICKS_PER_SAMPLE = 10
ALONE_S = 3.0  # enough for a tab to reload
END_S = 5.0  # for a server to end
LAW = ("blocked", "sentence", "law")  # parts of a side's view that give away the answer


class Stage:
    """`python`, `gunicorn`: as in `running.Launch`; `missing`: worker classes that cannot run here,
    with the reason; `classroom`: the pupils of a shared lab; `begin`: begin with the lesson's first
    question."""

    def __init__(
        self,
        python: str,
        gunicorn: str,
        missing: Mapping[str, str],
        lesson: Lesson,
        classroom: Classroom,
        *,
        begin: bool = False,
    ) -> None:
        self._python, self._gunicorn, self._missing = python, gunicorn, missing
        self._lesson = lesson
        self.classroom = classroom
        self._course: Course | None = None
        self._left_course: Course | None = None  # can be resumed
        self._running_since_s: float | None = None  # when the step's load began
        self._recorder = Recorder()
        self._origin_ns = time.monotonic_ns()
        self._lock = threading.RLock()
        self.load = LoadSettings()
        self.sides = [self._side(ServerSettings())]
        self._tabs: dict[str, Put] = {}
        self._driver: str | None = None
        self._last_left_s = time.monotonic()  # when the last tab was closed
        self._seed = 1
        self._closed = threading.Event()
        if begin:
            self._go({})
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    def _side(self, settings: ServerSettings) -> Side:
        return Side(settings, self._python, self._gunicorn, self._publish_state)

    # --- tabs ------------------------------------------------------------------------------------

    def join(self, put: Put) -> str:
        """Add a tab; the first one controls the lab. Returns its name."""
        with self._lock:
            name = secrets.token_hex(8)
            self._tabs[name] = put
            self._driver = self._driver or name
            self._greet(name)
            self._send_present(put)
            if self._course is not None:
                put(codec.encode(self._course.message()))
            self._publish_class()
            return name

    def _send_present(self, put: Put) -> None:
        put(self._state())
        put(self._tick_message([self._present(side) for side in self.sides]))

    def leave(self, name: str) -> None:
        with self._lock:
            self._tabs.pop(name, None)
            self._last_left_s = time.monotonic()
            if name == self._driver:
                self._driver = next(iter(self._tabs), None)
                if self._driver is not None:
                    self._greet(self._driver)

    @property
    def alone_s(self) -> float:
        """Seconds for which no tab has been open."""
        return 0.0 if self._tabs else time.monotonic() - self._last_left_s

    def _greet(self, name: str) -> None:
        role = "control" if name == self._driver else "watch"
        self._tabs[name](self._hello(name, role))

    def _hello(self, name: str, role: str) -> bytes:
        steps = [{"title": step.title} for step in self._lesson.steps]
        return codec.encode({
            "kind": "hello",
            "role": role,
            "tab": name,
            "limits": LIMITS,
            "classes": [{"name": name, "why": self._missing.get(name)} for name in CLASSES],
            "apps": [{"name": name, "title": app.title, "classes": app.classes}
                     for name, app in OWN_APPS.items()],
            "lesson": {"title": self._lesson.title, "steps": steps},
        })  # fmt: skip

    def _publish(self, message: bytes, *, tick: bool = False) -> None:
        with self._lock:
            self._send_tabs(message)
            self.classroom.publish(message, tick=tick)

    def _send_tabs(self, message: bytes) -> None:
        for put in self._tabs.values():
            put(message)

    # --- pupils ----------------------------------------------------------------------------------

    def admit(self, code: object, client: str) -> str:
        """The token of a new pupil. Raises Refused, as do the next two methods."""
        with self._lock:
            return self.classroom.admit(code, client, time.monotonic())

    def guess_as_pupil(self, token: str, order: Mapping[str, Any]) -> None:
        with self._lock:
            self.classroom.guess(token, self._course, order)
            self._publish_class()

    def join_as_pupil(self, token: str, put: Put) -> Put:
        """Add a page of a pupil: it shows what the tabs show, and the pupil's own guesses."""
        with self._lock:
            pupil = self.classroom.pupil(token)
            self.classroom.flush()  # else the new page would receive moves that it already has
            put(self._hello(secrets.token_hex(8), "pupil"))
            self._send_present(put)
            if self._course is not None:
                put(codec.encode(self._course.message(pupil.guesses)))
            pupil.streams.append(put)
            self._publish_class()
            return put

    def leave_as_pupil(self, token: str, put: Put) -> None:
        with self._lock:
            self.classroom.pupil(token).streams.remove(put)
            self._publish_class()

    def _publish_class(self) -> None:
        if self.classroom.address:
            self._send_tabs(self.classroom.message(self._course))

    # --- actions of a tab ------------------------------------------------------------------------

    def act(self, order: Mapping[str, Any]) -> None:
        """Perform a tab's action. Raises Refused, without any effect, if it is not possible."""
        with self._lock:
            if order.get("tab") != self._driver:
                raise Refused("another tab controls the lab; this one watches")
            action = {
                "load": self._change_load, "server": self._change_server,
                "compare": self._compare, "start": self._start, "restart": self._start,
                "stop": self._stop, "lesson": self._go, "guess": self._guess, "leave": self._leave,
                "tally": self._show_tally,
            }.get(str(order.get("do")))  # fmt: skip
            if action is None:
                raise Refused(f"unknown action {order.get('do')!r:.40}", "do")
            action({name: value for name, value in order.items() if name not in ("do", "tab")})
            self._publish_state()

    def _change_load(self, order: Mapping[str, Any]) -> None:
        self._set_load(changed_load(self.load, order))

    def _set_load(self, load: LoadSettings) -> None:
        self.load = load
        self._seed += 1
        for side in self.sides:
            side.change(self.load, self._seed)

    def _change_server(self, order: Mapping[str, Any]) -> None:
        number = order.get("side")
        if type(number) is not int or number not in range(len(self.sides)):
            raise Refused("there is no such server", "side")
        side = self.sides[number]
        changes = {name: value for name, value in order.items() if name != "side"}
        settings = changed_server(side.settings, changes)
        if why := self._missing.get(settings.worker_class):
            raise Refused(f"{settings.worker_class}: {why}", "worker_class")
        if settings == side.settings:
            return
        side.settings = settings
        if side.phase != "stopped":
            side.start(self.load, self._seed)

    def _compare(self, order: Mapping[str, Any]) -> None:
        """Add a second server of another class, or remove it."""
        wanted = bool(order.get("on"))
        if wanted and len(self.sides) == 1:
            first = self.sides[0]
            others = ("gevent", "gthread") if first.settings.worker_class == "sync" else ("sync",)
            available = (name for name in others if name not in self._missing)
            other = next(available, others[-1])
            self.sides.append(self._side(changed_server(first.settings, {"worker_class": other})))
            if first.phase in ("running", "starting"):
                self._start({})
        elif not wanted and len(self.sides) > 1:
            self.sides.pop().stop()

    def _start(self, _order: Mapping[str, Any]) -> None:
        self._seed += 1
        for side in self.sides:
            side.start(self.load, self._seed)

    def _stop(self, _order: Mapping[str, Any]) -> None:
        for side in self.sides:
            side.stop()

    # --- the lesson ------------------------------------------------------------------------------

    def _go(self, order: Mapping[str, Any]) -> None:
        """Go to a step and ask its question before anything runs. `order` without a step: the
        current or last one."""
        course = self._course or self._left_course or Course(self._lesson)
        course.go(order.get("step", course.place))
        self._course = course
        for side in self.sides:
            side.stop()
        if course.phase == "ask":
            del self.sides[1:]
            self.sides[0].settings, self.load = course.step.server, course.step.load
            self.classroom.open_question(course.place)
        self._publish_lesson()

    def _guess(self, order: Mapping[str, Any]) -> None:
        if self._course is None:
            raise Refused("there is no lesson: begin with one of its steps", "choice")
        self._course.guess(order.get("choice"))
        self.classroom.start_step(self._course.place)
        self._running_since_s, self._recorder = None, Recorder()
        if why := self._missing.get(self._course.step.server.worker_class):
            self._course.tell(None, no_outcome(why), left_out=True)
        else:
            self._start({})
        self._publish_lesson()

    def _show_tally(self, _order: Mapping[str, Any]) -> None:
        self.classroom.shows_tally = True
        self._publish_class()

    def _leave(self, _order: Mapping[str, Any]) -> None:
        self._left_course, self._course = self._course or self._left_course, None
        if self.load.patience_s:  # clients give up only in the lesson
            self._set_load(replace(self.load, patience_s=0.0))
        self._publish(codec.encode({"kind": "lesson", "phase": "left"}))

    @property
    def recorded(self) -> dict[str, object] | None:
        """The steps of the lesson that have run, also after it was left; None: none yet."""
        with self._lock:
            course = self._course or self._left_course
            recorded = course.recorded if course is not None else {}
            return recorded if recorded.get("steps") else None

    def _publish_lesson(self) -> None:
        if self._course is not None:
            self._publish_class()  # first: a tally must not appear with the next question
            self._send_tabs(codec.encode(self._course.message()))
            self.classroom.show(self._course)

    def _follow(self) -> None:
        """Advance the lesson: once a step has run for long enough, show its result."""
        with self._lock:
            course, side = self._course, self.sides[0]
            if course is None or course.phase != "run":
                return
            if side.phase == "failed":
                course.tell(None, no_outcome(side.why or ""), left_out=True)
                self._publish_lesson()
            elif side.phase == "running":
                self._running_since_s = self._running_since_s or time.monotonic()
                if time.monotonic() - self._running_since_s < course.settles_s + course.measured_s:
                    return
                if self._recorder.measure(course, side):
                    self._publish_lesson()

    def close(self) -> None:
        """Stop all servers; waits for each up to END_S."""
        self._closed.set()
        with self._lock:
            sides = list(self.sides)
        for side in sides:
            side.stop()
        for side in sides:
            side.join(END_S)

    # --- what is sent ----------------------------------------------------------------------------

    def _publish_state(self) -> None:
        with self._lock:
            self._publish(self._state())

    def _state(self) -> bytes:
        sides = [self._side_state(side) for side in self.sides]
        common = {"load": self.load, "cores": cores()}
        return codec.encode({"kind": "state", "sides": sides, **common})

    def _side_state(self, side: Side) -> dict[str, object]:
        view = side_view(side.settings, self.load, cores())
        if self._course is not None and self._course.phase == "ask":  # pupils could read it
            view = {name: value for name, value in view.items() if name not in LAW}
        return {"phase": side.phase, "why": side.why, "heeds": side.settings.heeds, **view}

    def _tick(self) -> None:
        number = 0
        while not self._closed.wait(TICK_S):
            if self.alone_s > ALONE_S and any(side.phase != "stopped" for side in self.sides):
                with self._lock:
                    if not self._tabs:
                        self._stop({})
            number += 1
            self._follow()
            sides = [
                self._news_of(side, sampled=number % TICKS_PER_SAMPLE == 0) for side in self.sides
            ]
            if any(side is not None for side in sides) and self._tabs:
                self._publish(self._tick_message(sides), tick=True)

    def _tick_message(self, sides: Sequence[dict[str, object] | None]) -> bytes:
        t = (time.monotonic_ns() - self._origin_ns) / 1e6
        return codec.encode({"kind": "tick", "t": round(t, 1), "sides": sides})

    def _present(self, side: Side) -> dict[str, object] | None:
        """For a new tab: the requests in flight."""
        moves = side.now()
        if moves is None:
            return None
        unknown = dict.fromkeys(("connections", "sample", "counts"))
        return {"moves": as_rows(moves, self._origin_ns), "drawn": 1, **unknown}

    def _news_of(self, side: Side, *, sampled: bool) -> dict[str, object] | None:
        current = side.look()
        if current is None:
            return None
        look, server = current
        sample = server.sample() if sampled else None
        if self._course is not None and self._course.phase == "run":
            self._recorder.add(look, sample)
        return {
            "moves": as_rows(look.moves, self._origin_ns),
            "connections": look.connections,
            "drawn": look.drawn_one_in,
            "counts": look.counts,
            "sample": sample,
        }
