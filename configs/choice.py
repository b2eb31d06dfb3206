"""Lets an environment variable choose the event loop or the parser in asgi.py and uvicorn.py."""

import os
from collections.abc import Mapping
from importlib.util import find_spec


def choice(variable: str, packages: Mapping[str, str]) -> str:
    """The value of an environment variable; the first of `packages` if it is not set.

    `packages` maps each value to the package that it needs. Exits with one sentence for any other
    value, and if the package is missing, instead of failing in each worker.
    """
    value = os.environ.get(variable, next(iter(packages)))
    if value not in packages:
        raise SystemExit(f"{variable} must be {' or '.join(packages)}, not {value!r}.")
    if find_spec(packages[value]) is None:
        raise SystemExit(
            f"{variable}={value} needs the package {packages[value]}, which is not installed."
        )
    return value
