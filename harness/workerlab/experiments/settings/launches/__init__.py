"""The launches that test what a worker class does with its settings. `effects` draws the
conclusions."""

from collections.abc import Mapping

from workerlab.experiments.settings.launches.common import COMMON, PRELOAD, SettingLaunch
from workerlab.experiments.settings.launches.slots import LINGERING, RECYCLING, SLOTS, THREADED
from workerlab.experiments.settings.launches.times import (
    CROWDED,
    RELOAD,
    SILENT,
    SOCKETS,
    STOP,
    TIMEOUT_BLOCK,
    TIMEOUT_WAIT,
    TOUCHED,
    UNDER_WAY,
)

# The longest first: both threads then end at about the same time
_EVERY = (SILENT, CROWDED, SOCKETS, TIMEOUT_WAIT, TIMEOUT_BLOCK, TOUCHED, COMMON, RECYCLING,
          UNDER_WAY, STOP, SLOTS, THREADED, PRELOAD, LINGERING, RELOAD)  # fmt: skip
LAUNCHES: Mapping[str, SettingLaunch] = {launch.name: launch for launch in _EVERY}
