#!/usr/bin/env bash
# Installs what is missing, then runs the lesson: scripts/demo.sh [--web [--share] | --yes]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh"
exec "$root/.venv/bin/workerlab" demo "$@"
