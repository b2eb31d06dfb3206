"""What a launch is: a Gunicorn file, and what is done to the server that it starts."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from workerlab.experiments.settings.site import Site

# What was seen, as JSON has it, by names of the launch's own
Seen = dict[str, Any]


class Launch(Struct, frozen=True):
    """`settings(site)`: of its file, beside one worker at a free port; `look(site)`: does the
    experiments, returns what was seen; `about_s`: how long it takes; `threads`: of gthread, the
    others have one; `quick`: it is made with --quick, too."""

    name: str
    settings: Callable[[Site], Mapping[str, object]]
    look: Callable[[Site], Seen]
    about_s: float
    threads: int = 2
    quick: bool = False
