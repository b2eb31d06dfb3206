"""The servers and the load of the live page, and its tabs and pupils.

One browser tab controls the lab; the others only watch. When all tabs are closed, the servers stop.
A thread reads the servers' state twenty times a second and sends the changes.
"""

import secrets
import threading
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from workerlab import codec
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.law import side_view
from workerlab.experiments.lesson.settings import (
    BUNDLED_APPS,
    MAX_VALUES,
    Action,
    LoadSettings,
    Message,
    Refused,
    ServerSettings,
    changed_load,
    changed_server,
)
from workerlab.experiments.lesson.steps import Lesson
from workerlab.experiments.lesson.texts import no_result
from workerlab.experiments.live.classroom import Classroom, Sender
from workerlab.experiments.live.recording import Recorder
from workerlab.experiments.live.side import Side
from workerlab.report.player.places import as_ms, as_rows
from workerlab.server.limits import cores
from workerlab.server.preflight import Interpreter
from workerlab.server.worker_classes import CLASSES

TICK_S = 0.05
TICKS_PER_SAMPLE = 10
NO_TABS_GRACE_S = 3.0  # until the servers stop: enough for a tab to reload
STOP_TIMEOUT_S = 5.0  # per server
LAW_FIELDS = ("blocked", "sentence", "law")  # of a side's view; they reveal the answer


class Stage:
    """`classroom`: the pupils of a shared lab; `begin`: start with the lesson's first question."""

    def __init__(
        self, interpreter: Interpreter, lesson: Lesson, classroom: Classroom, *, begin: bool = False
    ) -> None:
        self._interpreter, self._lesson, self.classroom = interpreter, lesson, classroom
        self._why_unavailable = {name: interpreter.why_unavailable(name) for name in CLASSES}
        self._progress = Course(lesson)  # kept if the lesson is left
        self._course: Course | None = None  # None outside the lesson
        self._load_began_s: float | None = None  # of the current step
        self._recorder = Recorder()
        self._origin_ns = time.monotonic_ns()
        self._lock = threading.RLock()
        self.load = LoadSettings()
        self.sides = [self._side(ServerSettings())]
        self._tabs: dict[str, Sender] = {}

        self._last_closed_s = time.monotonic()  # when a tab was last closed
        self._seed = 1
        self._closed = threading.Event()
        if begin:
            self._go_to_step({})
        self._ticker = threading.Thread(target=self._send_ticks, daemon=True)
        self._ticker.start()

    def _side(self, settings: ServerSettings) -> Side:
        return Side(settings, self._interpreter, self._publish_state)

    # --- tabs ------------------------------------------------------------------------------------

    def join(self, send: Sender) -> str:
        """Add a tab; the first one controls the lab. Returns its name."""
        with self._lock:
            name = secrets.token_hex(8)
            self._tabs[name] = send
            self._send_hello(name)
            self._send_picture(send)
            self._publish_class()
            return name

    def _send_picture(self, send: Sender, guesses: Mapping[int, int] | None = None) -> None:
        """Send the servers' state, the requests in flight and the lesson. `guesses`: of a pupil."""
        send(self._state())
        send(self._tick_message([self._in_flight(side) for side in self.sides]))
        if self._course is not None:
            send(codec.encode(self._course.message(guesses)))

    def leave(self, name: str) -> None:
        with self._lock:
            was_controlling = name == self._controlling_tab
            self._tabs.pop(name, None)
            self._last_closed_s = time.monotonic()
            if was_controlling and self._controlling_tab:
                self._send_hello(self._controlling_tab)

    @property
    def _controlling_tab(self) -> str | None:
        """The tab that has been open the longest."""
        return next(iter(self._tabs), None)

    @property
    def no_tabs_s(self) -> float:
        """Seconds for which no tab has been open."""
        return 0.0 if self._tabs else time.monotonic() - self._last_closed_s

    def _send_hello(self, name: str) -> None:
        role = "control" if name == self._controlling_tab else "watch"
        self._tabs[name](self._hello_message(name, role))

    def _hello_message(self, name: str, role: str) -> bytes:
        steps = [{"title": step.title} for step in self._lesson.steps]
        return codec.encode({
            "kind": "hello",
            "role": role,
            "tab": name,
            "limits": MAX_VALUES,
            "classes": [{"name": name, "why": why} for name, why in self._why_unavailable.items()],
            "apps": [{"name": name, "title": app.title, "classes": app.classes}
                     for name, app in BUNDLED_APPS.items()],
            "lesson": {"title": self._lesson.title, "steps": steps},
        })  # fmt: skip

    def _publish(self, message: bytes, *, tick: bool = False) -> None:
        with self._lock:
            self._send_tabs(message)
            self.classroom.publish(message, tick=tick)

    def _send_tabs(self, message: bytes) -> None:
        for send in self._tabs.values():
            send(message)

    # --- pupils ----------------------------------------------------------------------------------

    def admit(self, code: object, client: str) -> str:
        """The token of a new pupil. Raises Refused, as do the next two methods."""
        with self._lock:
            return self.classroom.admit(code, client, time.monotonic())

    def guess_as_pupil(self, token: str, action: Action) -> None:
        with self._lock:
            self.classroom.guess(token, self._course, action)
            self._publish_class()

    def join_as_pupil(self, token: str, send: Sender) -> Sender:
        """Add a pupil's page, which shows what the tabs show and the pupil's own guesses."""
        with self._lock:
            pupil = self.classroom.pupil(token)
            # Otherwise the new page would receive the batched moves twice
            self.classroom.flush()
            send(self._hello_message(secrets.token_hex(8), "pupil"))
            self._send_picture(send, pupil.guesses)
            pupil.streams.append(send)
            self._publish_class()
            return send

    def leave_as_pupil(self, token: str, send: Sender) -> None:
        with self._lock:
            self.classroom.pupil(token).streams.remove(send)
            self._publish_class()

    def _publish_class(self) -> None:
        if self.classroom.address:
            self._send_tabs(self.classroom.message(self._course))

    # --- actions of a tab ------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Perform a tab's action. Raises Refused, without any effect, if it is impossible."""
        with self._lock:
            if action.get("tab") != self._controlling_tab:
                raise Refused("another tab controls the lab; this one only watches")
            perform = {
                "load": self._change_load, "server": self._change_server,
                "compare": self._compare, "start": self._start, "restart": self._start,
                "stop": self._stop, "lesson": self._go_to_step, "guess": self._guess,
                "leave": self._leave, "tally": self._show_tally,
            }.get(str(action.get("do")))  # fmt: skip
            if perform is None:
                raise Refused(f"unknown action {action.get('do')!r:.40}", "do")
            perform({name: value for name, value in action.items() if name not in ("do", "tab")})
            self._publish_state()

    def _change_load(self, action: Action) -> None:
        self._set_load(changed_load(self.load, action))

    def _set_load(self, load: LoadSettings) -> None:
        self.load = load
        self._seed += 1
        for side in self.sides:
            side.change_load(self.load, self._seed)

    def _change_server(self, action: Action) -> None:
        index = action.get("side")
        if type(index) is not int or index not in range(len(self.sides)):
            raise Refused("no such server", "side")
        side = self.sides[index]
        changes = {name: value for name, value in action.items() if name != "side"}
        settings = changed_server(side.settings, changes)
        if why := self._why_unavailable[settings.worker_class]:
            raise Refused(f"{settings.worker_class}: {why}", "worker_class")
        if settings == side.settings:
            return
        side.settings = settings
        if side.phase != "stopped":
            side.start(self.load, self._seed)

    def _compare(self, action: Action) -> None:
        """Add a second server of another class, or remove it."""
        compare = bool(action.get("on"))
        if compare and len(self.sides) == 1:
            first = self.sides[0]
            classes = ("gevent", "gthread") if first.settings.worker_class == "sync" else ("sync",)
            available = (name for name in classes if not self._why_unavailable[name])
            name = next(available, classes[-1])
            self.sides.append(self._side(changed_server(first.settings, {"worker_class": name})))
            if first.phase in ("running", "starting"):
                self._start({})
        elif not compare and len(self.sides) > 1:
            self.sides.pop().stop()

    def _start(self, _action: Action) -> None:
        self._seed += 1
        for side in self.sides:
            side.start(self.load, self._seed)

    def _stop(self, _action: Action) -> None:
        for side in self.sides:
            side.stop()

    # --- the lesson ------------------------------------------------------------------------------

    def _go_to_step(self, action: Action) -> None:
        """Go to a step and ask its question before anything runs. An `action` without a step goes
        to the current or most recently visited one."""
        course = self._progress
        course.go(action.get("step", course.step_index))
        self._course = course
        for side in self.sides:
            side.stop()
        if course.phase == "ask":
            del self.sides[1:]
            self.sides[0].settings, self.load = course.step.server, course.step.load
            self.classroom.open_question(course.step_index)
        self._publish_lesson()

    def _guess(self, action: Action) -> None:
        if self._course is None:
            raise Refused("start a step of the lesson first", "choice")
        self._course.guess(action.get("choice"))
        self.classroom.start_step(self._course.step_index)
        self._load_began_s, self._recorder = None, Recorder()
        if why := self._why_unavailable[self._course.step.server.worker_class]:
            self._course.finish(None, no_result(why), skipped=True)
        else:
            self._start({})
        self._publish_lesson()

    def _show_tally(self, _action: Action) -> None:
        self.classroom.shows_tally = True
        self._publish_class()

    def _leave(self, _action: Action) -> None:
        self._course = None
        if self.load.patience_s:  # clients give up only in the lesson
            self._set_load(replace(self.load, patience_s=0.0))
        self._publish(codec.encode({"kind": "lesson", "phase": "left"}))

    @property
    def recording(self) -> Message | None:
        """The steps that have run, even if the lesson has been left since; None if there are
        none."""
        with self._lock:
            recording = self._progress.recording
            return recording if recording["steps"] else None

    def _publish_lesson(self) -> None:
        if self._course is not None:
            self._publish_class()  # first: a tally must not appear with the next question
            self._send_tabs(codec.encode(self._course.message()))
            self.classroom.send_lesson(self._course)

    def _advance_lesson(self) -> None:
        """Show the result of the current step once it has run for long enough."""
        with self._lock:
            course, side = self._course, self.sides[0]
            if course is None or course.phase != "run":
                return
            if side.phase == "failed":
                course.finish(None, no_result(side.why or ""), skipped=True)
                self._publish_lesson()
            elif side.phase == "running":
                self._load_began_s = self._load_began_s or time.monotonic()
                if time.monotonic() - self._load_began_s < course.settling_s + course.measurement_s:
                    return
                if self._recorder.measure(course, side):
                    self._publish_lesson()

    def close(self) -> None:
        """Stop all servers; waits for each up to STOP_TIMEOUT_S."""
        self._closed.set()
        with self._lock:
            sides = list(self.sides)
        for side in sides:
            side.stop()
        for side in sides:
            side.join(STOP_TIMEOUT_S)

    # --- messages --------------------------------------------------------------------------------

    def _publish_state(self) -> None:
        with self._lock:
            self._publish(self._state())

    def _state(self) -> bytes:
        sides = [self._side_state(side) for side in self.sides]
        common = {"load": self.load, "cores": cores()}
        return codec.encode({"kind": "state", "sides": sides, **common})

    def _side_state(self, side: Side) -> Message:
        view = side_view(side.settings, self.load, cores())
        if self._course is not None and self._course.phase == "ask":  # pupils could read it
            view = {name: value for name, value in view.items() if name not in LAW_FIELDS}
        return {
            "phase": side.phase,
            "why": side.why,
            "heeds": side.settings.effective_settings,
            **view,
        }

    def _send_ticks(self) -> None:
        ticks = 0
        while not self._closed.wait(TICK_S):
            with self._lock:
                is_running = any(side.phase != "stopped" for side in self.sides)
                if is_running and self.no_tabs_s > NO_TABS_GRACE_S:
                    self._stop({})
            ticks += 1
            self._advance_lesson()
            sides = [
                self._update_of(side, sampled=ticks % TICKS_PER_SAMPLE == 0) for side in self.sides
            ]
            if any(side is not None for side in sides) and self._tabs:
                self._publish(self._tick_message(sides), tick=True)

    def _tick_message(self, sides: Sequence[Message | None]) -> bytes:
        at_ms = as_ms(time.monotonic_ns(), self._origin_ns)
        return codec.encode({"kind": "tick", "t": at_ms, "sides": sides})

    def _in_flight(self, side: Side) -> Message | None:
        """The requests in flight, for a new tab."""
        moves = side.read(lambda live: live.places.snapshot(time.monotonic_ns()))
        if moves is None:
            return None
        unknown = dict.fromkeys(("connections", "sample", "counts"))
        return {"moves": as_rows(moves, self._origin_ns), "drawn": 1, **unknown}

    def _update_of(self, side: Side, *, sampled: bool) -> Message | None:
        current = side.poll()
        if current is None:
            return None
        update, server = current
        sample = server.sample() if sampled else None
        if self._course is not None and self._course.phase == "run":
            self._recorder.add(update, sample)
        return {
            "moves": as_rows(update.moves, self._origin_ns),
            "connections": update.connections,
            "drawn": update.drawn_one_in,
            "counts": update.counts,
            "sample": sample,
        }
