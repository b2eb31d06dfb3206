"""A launch: a Gunicorn file, and the experiments on the server started from it."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from workerlab.experiments.settings.site import Site

# Observations, as JSON; the launch chooses the names
Seen = dict[str, Any]


class SettingLaunch(Struct, frozen=True):
    """`settings(site)`: further settings of its file; `look(site)`: makes the experiments, returns
    the observations; `about_s`: typical duration; `threads`: for gthread, other classes have one;
    `quick`: also made with --quick."""

    name: str
    settings: Callable[[Site], Mapping[str, object]]
    look: Callable[[Site], Seen]
    about_s: float
    threads: int = 2
    quick: bool = False
