"""How the files of asgi and uvicorn let an environment variable choose a loop or a parser."""

import os
from collections.abc import Mapping
from importlib.util import find_spec


def choice(variable: str, packages: Mapping[str, str]) -> str:
    """The value of an environment variable; the first of `packages` where it is not set.

    `packages` says which package each value needs. Ends the program with one sentence for any
    other value, and for one whose package is missing: better here than in each worker's log.
    """
    value = os.environ.get(variable, next(iter(packages)))
    if value not in packages:
        raise SystemExit(f"{variable} must be {' or '.join(packages)}, not {value!r}.")
    if find_spec(packages[value]) is None:
        raise SystemExit(f"{variable}={value} needs the package {packages[value]}, not installed.")
    return value
