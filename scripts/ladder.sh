#!/usr/bin/env bash
# Installs what is missing, then runs the ladder: scripts/ladder.sh [OPTION...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh" --ladder
"$root/scripts/mongodb_stand_in.sh" "$root/.venv/bin"
PATH="$root/.venv/bin:$PATH" exec "$root/.venv/bin/workerlab" ladder "$@"
