"""The pupils of a shared lab, their guesses, and the messages sent to them.

A pupil joins with the room code and is identified from then on by a random token in a cookie.
Nothing is stored on disk. Messages to all pupils are encoded once and sent in batches: the measured
servers need the CPU.
"""

import secrets
import socket
from collections import deque
from collections.abc import Callable

import psutil

from workerlab import codec
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.settings import Action, Refused

CODE_CHARACTERS = "34679ABCDEFGHJKLMNPQRSTUVWXYZ"  # without look-alikes
CODE_LENGTH = 6  # 29 ** 6 = 6e8 codes
MAX_WRONG_CODES_PER_ADDRESS = 10  # per minute
MAX_WRONG_CODES_TOTAL = 500  # per minute
MAX_PUPILS = 100
MAX_STREAMS = 3  # per pupil: tabs of a browser, and a connection that is not yet closed
TICKS_PER_BATCH = 5

Sender = Callable[[bytes], None]  # sends a message to a page; called from any thread


class Pupil:
    """`guesses`: the choice by step; `streams`: to the pupil's open pages."""

    def __init__(self) -> None:
        self.guesses: dict[int, int] = {}
        self.streams: list[Sender] = []


class Classroom:
    """`address`: the URL where pupils join; "" if the lab is not shared. Not thread-safe: `Stage`
    calls it under its lock."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.code = "".join(secrets.choice(CODE_CHARACTERS) for _ in range(CODE_LENGTH))
        self.shows_tally = False
        self._pupils: dict[str, Pupil] = {}
        self._wrong_codes: deque[tuple[float, str]] = deque()
        self._started_steps: set[int] = set()  # steps whose law was shown since their question
        self._batch: list[bytes] = []

    def admit(self, code: object, client: str, now_s: float) -> str:
        """Return a new pupil's token. A full room drops a pupil without an open page. `client`:
        network address; `now_s`: from a monotonic clock. Raises Refused."""
        while self._wrong_codes and self._wrong_codes[0][0] < now_s - 60:
            self._wrong_codes.popleft()
        clients = [address for _, address in self._wrong_codes]
        if (
            clients.count(client) >= MAX_WRONG_CODES_PER_ADDRESS
            or len(clients) >= MAX_WRONG_CODES_TOTAL
        ):
            raise Refused("too many wrong codes: try again in a minute", "code")
        entered_code = str(code).strip().upper().encode("utf-8", "replace")
        if not secrets.compare_digest(entered_code, self.code.encode()):
            if code:
                self._wrong_codes.append((now_s, client))
            raise Refused("wrong room code", "code")
        if len(self._pupils) >= MAX_PUPILS:
            idle = next((token for token, pupil in self._pupils.items() if not pupil.streams), None)
            if idle is None:
                raise Refused(f"the room is full ({MAX_PUPILS} pupils)", "code")
            del self._pupils[idle]
        token = secrets.token_urlsafe(16)
        self._pupils[token] = Pupil()
        return token

    def pupil(self, token: str) -> Pupil:
        """Raises Refused for an unknown token."""
        if token not in self._pupils:
            raise Refused("join with the room code first")
        return self._pupils[token]

    # --- guesses ---------------------------------------------------------------------------------

    def open_question(self, step: int) -> None:
        """Delete the step's guesses if its law has been shown; otherwise keep them."""
        self.shows_tally = False
        if step in self._started_steps:
            self._started_steps.remove(step)
            for pupil in self._pupils.values():
                pupil.guesses.pop(step, None)

    def start_step(self, step: int) -> None:
        self._started_steps.add(step)
        self.shows_tally = True

    def guess(self, token: str, course: Course | None, action: Action) -> None:
        """Store a pupil's guess. Raises Refused."""
        pupil = self.pupil(token)
        if course is None or course.phase != "ask" or action.get("step") != course.step_index:
            raise Refused("too late: this question is closed")
        choice = action.get("choice")
        if type(choice) is not int or choice not in range(len(course.step.choices)):
            raise Refused("no such choice", "choice")
        pupil.guesses[course.step_index] = choice
        self._send(pupil, codec.encode(course.message(pupil.guesses)))

    def message(self, course: Course | None) -> bytes:
        """The state of the class, for the teacher's page: only counts, never who guessed what."""
        step_index = course.step_index if course is not None else -1
        guesses = [pupil.guesses.get(step_index) for pupil in self._pupils.values()]
        present = [
            bool(pupil.streams) or step_index in pupil.guesses for pupil in self._pupils.values()
        ]
        count = len(course.step.choices) if course is not None and self.shows_tally else 0
        return codec.encode({
            "kind": "class", "address": self.address, "code": self.code,
            "pupils": sum(present), "guessed": len(guesses) - guesses.count(None),
            "tally": [guesses.count(choice) for choice in range(count)],
        })  # fmt: skip

    # --- messages to pupils ----------------------------------------------------------------------

    def publish(self, message: bytes, *, tick: bool = False) -> None:
        """Send to all pupils; ticks are sent in batches."""
        self._batch.append(message)
        if not tick or len(self._batch) >= TICKS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Send the batch, as several events in one message."""
        batch, self._batch = b"\n\ndata: ".join(self._batch), []
        for pupil in self._pupils.values() if batch else ():
            self._send(pupil, batch)

    def send_lesson(self, course: Course) -> None:
        """Send the lesson to each pupil, with the pupil's own guesses."""
        self.flush()
        for pupil in self._pupils.values():
            self._send(pupil, codec.encode(course.message(pupil.guesses)))

    def _send(self, pupil: Pupil, message: bytes) -> None:
        for send in pupil.streams:
            send(message)


def lan_addresses() -> list[str]:
    """This machine's IPv4 addresses that other machines may reach, the one of the default route
    first. Sends no packet."""
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # TEST-NET-2: assigned to no machine
            preferred = probe.getsockname()[0]
        except OSError:
            preferred = ""
    reachable = {address for address in addresses if not address.startswith(("127.", "169.254."))}
    return sorted(reachable, key=lambda address: (address != preferred, address))


def valid_hosts(port: int) -> set[str]:
    """Valid Host headers for this machine at that port."""
    name = socket.gethostname().lower()
    names = {"127.0.0.1", "localhost", name, f"{name}.local", *lan_addresses()}
    return {f"{host}:{port}" for host in names}
