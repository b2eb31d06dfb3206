#!/usr/bin/env bash
# Sets up what is missing, then gives the lesson: scripts/demo.sh [--web [--share] | --yes]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh"
exec "$root/.venv/bin/workerlab" demo "$@"
