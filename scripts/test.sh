#!/usr/bin/env bash
# Sets up what is missing, then runs the tests through tox and counts them.
# Its arguments are tox's: scripts/test.sh -e unit,gevent -- -k saturated
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/scripts/setup.sh" --tox

# uv fills the environments, and does not read pip's configuration, where a mirror may stand.
index=$("$root/.venv-tox/bin/python" -m pip config get global.index-url 2>/dev/null) || index=
if [ -n "$index" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"; fi

# What earlier runs left must not be counted for this one.
rm -f "$root"/.tox/junit-*.xml
status=0
how=run
# Everything, most of which waits: several environments at once, each shown when it has ended. Six
# keep two cores 95 % busy.
if [ $# = 0 ]; then how=run-parallel; set -- --parallel 6 --parallel-no-spinner; fi
"$root/.venv-tox/bin/tox" $how -c "$root/tox.ini" "$@" || status=$?
"$root/.venv-tox/bin/python" "$root/scripts/tally.py" "$root"/.tox/junit-*.xml
exit "$status"
