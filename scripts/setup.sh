#!/usr/bin/env bash
# Installs what is missing; does nothing if everything is there:
#
#   scripts/setup.sh            .venv with .venv/bin/workerlab, and the load tools ab and wrk
#   scripts/setup.sh --ladder   the same, plus PostgreSQL and Redis for the ladder
#   scripts/setup.sh --tox      .venv-tox with tox instead of .venv, the load tools, PostgreSQL and
#                               Redis, and a browser for the tests of the report page
#
# System packages come from apt-get (as root, or with passwordless sudo) or brew. Without them the
# lab still works, with its own load generator instead of ab, and SQLite instead of PostgreSQL.
# Servers are installed but not started: the lab starts its own. Fails only for missing essentials,
# with exit code 3 and one sentence. All output goes to standard error.
#
# Written for bash 3.2, which macOS still has.
set -euo pipefail
exec 1>&2

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
wait_s=600          # for another setup in this checkout
marks=$root/.setup   # times of the last attempts to install system packages
retry_after_min=60  # before system packages that could not be installed are tried again
log=
python=
apt_updated=
system=${WORKERLAB_SYSTEM:-}  # root of the system's own files; tests use another one
policy=$system/usr/sbin/policy-rc.d
clusters=$system/etc/postgresql-common/createcluster.d
made_policy=
made_clusters=
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1

say() { echo "setup: $*"; }
fail() { say "$*"; exit 3; }

# --- checks ---------------------------------------------------------------------------------

# Debian keeps PostgreSQL's programs outside the PATH.
have() {
  command -v "$1" >/dev/null 2>&1 ||
    { [ "$1" = initdb ] && compgen -G "$system/usr/lib/postgresql/*/bin/initdb" >/dev/null; }
}

# A fingerprint of everything that determines the installation: the requirements, and the path of
# the checkout, because a venv cannot be moved.
wanted() { { cat "$root/pyproject.toml" "$root/constraints.txt"; echo "$root"; } | cksum; }

# complete VENV PROGRAM: is it complete and up to date, and does its interpreter still run?
complete() {
  local venv=$root/$1
  [ -x "$venv/bin/$2" ] &&
    [ "$(cat "$venv/.complete" 2>/dev/null)" = "$(wanted)" ] &&
    "$venv/bin/python" -c '' >/dev/null 2>&1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
can_make_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Debian's python3-pip without python3-venv: its pip can install into a venv that has no pip.
can_fill_venv() { "$1" -c 'import venv' && "$1" -m pip --python "$(command -v "$1")" --version; } >/dev/null 2>&1

# Not every sweep needs to try again to install system packages that this user cannot install.
tried() { [ -n "$(find "$marks/$1-tried" -mmin "-$retry_after_min" 2>/dev/null)" ]; }
mark_tried() { mkdir -p "$marks" && : >"$marks/$1-tried"; }
have_browser() { have chromium || have chromium-browser || have google-chrome; }
tools_settled() { { have ab && have wrk; } || tried tools; }
servers_settled() { { have initdb && have redis-server; } || tried servers; }
browser_settled() { have_browser || tried browser; }

# --- installers -----------------------------------------------------------------------------

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# quietly COMMAND...: runs a command, and shows its output only if it fails.
quietly() {
  if "$@" >"$log" 2>&1 </dev/null; then return 0; fi
  tail -n 30 "$log"
  return 1
}

apt() {
  as_root apt-get -y -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
    -o DPkg::Lock::Timeout=120 "$@"
}

may_apt() {
  have apt-get && { [ "$(id -u)" = 0 ] || { have sudo && sudo -n apt-get --version; }; } >/dev/null 2>&1
}

# apt_install PACKAGE...
apt_install() {
  if [ -z "$apt_updated" ]; then
    apt_updated=yes
    say "apt-get update"
    # Continue: the mirror that is unreachable may not be the one that is needed.
    quietly apt update || say "apt-get update failed"
  fi
  say "apt-get install $*"
  quietly apt install --no-install-recommends "$@"
}

# Debian starts the servers that it installs, now and at every boot, and creates a database cluster.
# Both are switched off during the installation, unless somebody else has configured them.
hold_services() {
  if [ ! -e "$policy" ]; then
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
  fi
  if [ ! -e "$clusters" ]; then
    made_clusters=yes
    as_root mkdir -p "$clusters"
    echo 'create_main_cluster = off' | as_root tee "$clusters/workerlab.conf" >/dev/null
  fi
}

release_services() {
  [ -z "$made_policy" ] || as_root rm -f "$policy" || true
  [ -z "$made_clusters" ] || as_root rm -rf "$clusters" || true
  made_policy='' made_clusters=''
}

# get PROGRAM PACKAGE [BREW-PACKAGE-OF-A-SERVER]
get() {
  have "$1" && return 0
  if [ "$(uname -s)" = Darwin ]; then
    have brew || return 1
    say "brew install ${3:-$2}"
    quietly brew install "${3:-$2}" || return 1
  else
    may_apt || return 1
    [ -z "${3:-}" ] || hold_services
    apt_install "$2" || true
    release_services
    if [ "$1" = redis-server ] && have systemctl; then
      as_root systemctl disable "$1" >/dev/null 2>&1 || true
    fi
  fi
  have "$1"
}

# --- python ---------------------------------------------------------------------------------

# Sets `python` to one that is new enough, and that can make a venv if any of them can.
find_python() {
  local name
  python=
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if new_enough "$name"; then
      python=${python:-$name}
      if can_make_venv "$name"; then python=$name; return 0; fi
    fi
  done
  [ -n "$python" ]
}

ensure_python() {
  if ! find_python && may_apt; then apt_install python3.11 python3.11-venv || true; fi
  find_python || fail "Python 3.11 or newer is needed, and PATH has none (python3 is $(
    python3 --version 2>/dev/null || echo missing))."
  can_make_venv "$python" && return 0
  local package
  package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  if may_apt; then apt_install "$package" || true; fi
  can_make_venv "$python" || can_fill_venv "$python" ||
    fail "$python cannot make virtual environments: let root install $package, then try again."
}

# make_venv VENV PROGRAM PIP-ARGUMENT...: makes a venv unless it is complete; from scratch, so that
# an incomplete one is no special case.
make_venv() {
  if complete "$1" "$2"; then return 0; fi
  local venv=$root/$1 with='' pip
  pip=("$venv/bin/python" -m pip)
  ensure_python
  if [ "$2" = tox ]; then say "installing tox in its own venv, $1"
  else say "making $1 with $("$python" --version 2>&1)"; fi
  shift 2
  if ! can_make_venv "$python"; then
    with=--without-pip
    pip=("$python" -m pip --python "$venv/bin/python")
  fi
  rm -rf "$venv"
  quietly "$python" -m venv ${with:+"$with"} "$venv" ||
    fail "$python could not make $venv (see above)."
  say "pip install $*"
  (cd "$root" && quietly "${pip[@]}" install --quiet -c constraints.txt "$@") ||
    fail "pip could not install into $venv (see above)."
  wanted >"$venv/.complete"
}

# --- optional programs: nothing here fails --------------------------------------------------

ensure_tools() {
  if tools_settled; then return 0; fi
  mark_tried tools
  get ab apache2-utils ||
    say "ab is missing and cannot be installed: the embedded load tool 'fast' will be used."
  get wrk wrk || say "wrk is missing and cannot be installed: '--tool wrk' is unavailable."
}

ensure_servers() {
  if servers_settled; then return 0; fi
  mark_tried servers
  get initdb postgresql postgresql@17 ||
    say "PostgreSQL is missing and cannot be installed: the ladder uses SQLite."
  get redis-server redis-server redis ||
    say "Redis is missing and cannot be installed: the ladder goes without the cache in it."
}

ensure_browser() {
  if browser_settled; then return 0; fi
  mark_tried browser
  { may_apt && apt_install chromium fonts-dejavu-core && have_browser; } ||
    say "no Chromium, and none can be installed: the report page is not tested in a browser."
}

# --- main -----------------------------------------------------------------------------------

# One setup at a time. An open file holds the lock, so the kernel releases it however this process
# ends. Needs Python, of any version, because macOS has no flock(1).
hold_lock() {
  have python3 || fail "Python 3.11 or newer is needed, and there is none on PATH."
  exec python3 -c '
import fcntl, os, signal, sys
path, limit_s, script = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def fail(why):
    sys.stderr.write(f"setup: {why}.\n")
    sys.exit(3)
try:
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
except OSError as problem:
    fail(f"{path} cannot be written: {problem.strerror}")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.stderr.write("setup: waiting for another setup in this checkout\n")
    late = f"another setup has held {path} for {limit_s} s: giving up"
    signal.signal(signal.SIGALRM, lambda *_: fail(late))
    signal.alarm(limit_s)
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(0)
os.set_inheritable(lock, True)
os.environ["WORKERLAB_SETUP_LOCKED"] = "1"
os.execvp("bash", ["bash", *script])
' "$root/.setup.lock" "$wait_s" "$root/scripts/setup.sh" "$@"
}

clean_up() {
  rm -f "$log"
  release_services
}

main() {
  local want_tox='' want_servers=''
  case "$*" in
    "") ;;
    --ladder) want_servers=yes ;;
    --tox) want_tox=yes want_servers=yes ;;
    *) say "unknown argument: $*"; exit 2 ;;
  esac
  if { [ -z "$want_servers" ] || servers_settled; } && tools_settled &&
    if [ -z "$want_tox" ]; then complete .venv workerlab
    else complete .venv-tox tox && browser_settled; fi; then
    return 0
  fi
  [ -n "${WORKERLAB_SETUP_LOCKED:-}" ] || hold_lock "$@"
  unset WORKERLAB_SETUP_LOCKED
  log=$(mktemp)
  trap clean_up EXIT
  if [ -z "$want_tox" ]; then
    make_venv .venv workerlab -e '.[all]'
  else
    make_venv .venv-tox tox tox tox-uv  # uv fills an environment in seconds; pip takes a minute
  fi
  ensure_tools
  [ -z "$want_servers" ] || ensure_servers
  [ -z "$want_tox" ] || ensure_browser
  say "done"
}

main "$@"
