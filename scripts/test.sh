#!/usr/bin/env bash
# Installs what is missing, then runs the tests through tox and counts them.
# Its arguments go to tox: scripts/test.sh -e unit,gevent -- -k saturated
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh" --tox

# uv installs the packages, but does not read pip's configuration, which may name a mirror.
index=$("$root/.venv-tox/bin/python" -m pip config get global.index-url 2>/dev/null) || index=
if [ -n "$index" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"; fi

# Results of earlier runs must not be counted.
rm -f "$root"/.tox/junit-*.xml
status=0
how=run
# Without arguments, runs all environments, seven in parallel, because tests mostly wait. The unit
# tests, among the first, use what the others leave of two cores. The output of each environment is
# shown when it has ended.
if [ $# = 0 ]; then how=run-parallel; set -- --parallel 7 --parallel-no-spinner; fi
"$root/.venv-tox/bin/tox" $how -c "$root/tox.ini" "$@" || status=$?
"$root/.venv-tox/bin/python" "$root/scripts/tally.py" "$root"/.tox/junit-*.xml
exit "$status"
