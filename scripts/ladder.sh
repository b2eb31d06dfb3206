#!/usr/bin/env bash
# Sets up what is missing, then climbs down the ladder: scripts/ladder.sh [OPTION...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh" --ladder
exec "$root/.venv/bin/workerlab" ladder "$@"
