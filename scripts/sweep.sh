#!/usr/bin/env bash
# Sets up what is missing, then sweeps: scripts/sweep.sh CLASSES LEVELS [OPTION...]
# It stays in the caller's directory, so that paths among the options mean what they say there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh"
exec "$root/.venv/bin/workerlab" sweep "$@"
