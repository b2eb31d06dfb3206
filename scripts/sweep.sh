#!/usr/bin/env bash
# Installs what is missing, then runs a sweep: scripts/sweep.sh CLASSES LEVELS [OPTION...]
# Stays in the caller's directory, so that relative paths in the options work.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh"
exec "$root/.venv/bin/workerlab" sweep "$@"
