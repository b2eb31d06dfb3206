#!/usr/bin/env bash
# Installs what is missing; does nothing if everything is there:
#
#   scripts/setup.sh            .venv with .venv/bin/workerlab, and the load tools ab and wrk
#   scripts/setup.sh --ladder   the same, plus PostgreSQL and Redis for the ladder
#   scripts/setup.sh --tox      .venv-tox with tox instead of .venv, the load tools, PostgreSQL and
#                               Redis, and a browser to test the report page
#
# System packages come from apt-get (as root, or with passwordless sudo) or brew. Without them the
# lab still works, with its own load generator instead of ab, and SQLite instead of PostgreSQL.
# Servers are installed but not started: the lab starts its own. Fails only for missing essentials,
# with exit code 3 and one sentence. All output goes to standard error. Written for bash 3.2, which
# macOS still has.
set -euo pipefail
exec 1>&2
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
state=$root/.setup  # the lock, the output of the last command, times of failed installations
system=${WORKERLAB_SYSTEM:-}  # root of the system's own files; tests use another one
python='' apt_updated='' hold_files=()

say() { echo "setup: $*"; }
fail() { say "$*"; exit 3; }

# step TITLE COMMAND...: shows the output of COMMAND only if it fails.
step() {
  say "$1"
  if ! "${@:2}" >"$state/output" 2>&1 </dev/null; then tail -n 30 "$state/output"; return 1; fi
}

# have PROGRAM: is it installed, under any of its names? Debian and brew keep PostgreSQL's programs
# outside the PATH.
have() {
  case $1 in
    chromium) set -- chromium chromium-browser google-chrome ;;
    initdb) set -- initdb "$system"/usr/lib/postgresql/*/bin/initdb \
      "$system"/{opt/homebrew,usr/local}/opt/postgresql*/bin/initdb ;;
  esac
  command -v "$@" >/dev/null 2>&1
}

# settled PROGRAM: installed, or attempted within the last hour (not every sweep tries again).
settled() { have "$1" || [ -n "$(find "$state/$1-tried" -mmin -60 2>/dev/null)" ]; }

# A fingerprint of everything that determines the installation: the requirements, and the path of
# the checkout, because a venv cannot be moved.
fingerprint() { { cat "$root/pyproject.toml" "$root/constraints.txt"; echo "$root"; } | cksum; }

# complete VENV PROGRAM: is VENV complete and up to date, and does its interpreter still run?
complete() {
  [ -x "$1/bin/$2" ] && [ "$(cat "$1/.complete" 2>/dev/null)" = "$(fingerprint)" ] &&
    "$1/bin/python" -c '' >/dev/null 2>&1
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
apt() {
  step "apt-get $*" as_root apt-get -y -o APT::Install-Recommends=false -o Acquire::Retries=1 \
    -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=120 "$@"
}

# hold PATH FILE MODE TEXT: creates FILE for the duration of this setup, unless PATH exists.
hold() {
  [ ! -e "$1" ] || return 0
  hold_files+=("$1")
  printf '%b' "$4" | as_root install -D -m "$3" /dev/stdin "$2"
}
# Debian starts the servers that it installs, now and at every boot, and creates a database cluster.
# Both are disabled during this setup, unless they have been configured already.
hold_services() {
  local policy=$system/usr/sbin/policy-rc.d clusters=$system/etc/postgresql-common/createcluster.d
  hold "$policy" "$policy" 755 '#!/bin/sh\nexit 101\n' &&
    hold "$clusters" "$clusters/workerlab.conf" 644 'create_main_cluster = off\n'
}
release_services() { [ ${#hold_files[@]} = 0 ] || as_root rm -rf "${hold_files[@]}" || true; }

# get BREW-PACKAGE APT-PACKAGE...: installs with the package manager that this user may use, if any.
get() {
  local brew=$1; shift
  if as_root apt-get --version >/dev/null 2>&1; then
    # Continue on errors: the packages may not come from the mirror that is unreachable.
    [ -n "$apt_updated" ] || apt update || true
    apt_updated=yes
    case $1 in postgresql | redis-server) hold_services || return 0 ;; esac
    apt install "$@" || true
    [ "$1" != redis-server ] || as_root systemctl disable "$1" >/dev/null 2>&1 || true
  elif [ -n "$brew" ] && have brew; then
    step "brew install $brew" brew install "$brew" || true
  fi
}

# ensure PROGRAM: installs an optional program, or says what its absence means.
ensure() {
  local title=$1 consequence
  if settled "$1"; then return 0; fi
  case $1 in
    ab) get httpd apache2-utils; consequence="the embedded load tool 'fast' will be used" ;;
    wrk) get wrk wrk; consequence="'--tool wrk' is unavailable" ;;
    initdb) title=PostgreSQL consequence='the ladder uses SQLite'
      get postgresql@17 postgresql ;;
    redis-server) title=Redis consequence='the ladder runs without its Redis cache'
      get redis redis-server ;;
    chromium) title=Chromium consequence='the report page is not tested in a browser'
      get '' chromium fonts-dejavu-core ;;
  esac
  if have "$1"; then return 0; fi
  : >"$state/$1-tried"
  say "$title is missing and cannot be installed: $consequence."
}

can_make_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }
venv_package() { "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'; }
# Sets `python` to one that is new enough. Succeeds if it can make a venv, which is preferred.
find_python() {
  local without_venv=''
  for python in python3 python3.14 python3.13 python3.12 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
    if can_make_venv; then return 0; fi
    without_venv=${without_venv:-$python}
  done
  python=$without_venv
  return 1
}

ensure_python() {
  if find_python; then return 0; fi
  get python@3.13 "$([ -n "$python" ] && venv_package || echo '^python3[.]1[1-9]-venv$')"
  if find_python; then return 0; fi
  [ -n "$python" ] || fail "Python 3.11 or newer is needed, and PATH has none (python3 is $(
    python3 --version 2>/dev/null || echo missing)): install it, then try again."
  # Debian's python3-pip without python3-venv: its pip can install into a venv that has no pip.
  { "$python" -c 'import venv' && "$python" -m pip --python "$(command -v "$python")" --version
  } >/dev/null 2>&1 || fail "$python cannot create virtual environments:" \
    "let root install $(venv_package), then try again."
}

# make_venv VENV PROGRAM PIP-ARGUMENT...: from scratch, so that an incomplete one is no special case.
make_venv() {
  local venv=$1 flag='' pip=("$1/bin/python" -m pip)
  if complete "$1" "$2"; then return 0; fi
  shift 2
  can_make_venv || flag=--without-pip pip=("$python" -m pip --python "$venv/bin/python")
  rm -rf "$venv"
  step "making ${venv##*/} with $("$python" --version 2>&1)" "$python" -m venv $flag "$venv" ||
    fail "$python could not create $venv (see above)."
  (cd "$root" && step "pip install $*" "${pip[@]}" install --quiet -c constraints.txt "$@") ||
    fail "pip could not install into $venv (see above)."
  fingerprint >"$venv/.complete"
}

# lock_within SECONDS: one setup at a time. The open descriptor 9 holds the lock, so the kernel
# releases it however this process ends. In Python, because macOS has no flock(1).
lock_within() {
  "$python" -c "import fcntl, signal, sys
signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
signal.alarm($1)
fcntl.flock(9, fcntl.LOCK_EX)"
}

main() {
  local venv=$root/.venv program=workerlab packages=(-e '.[all]') optional=(ab wrk) missing=() name
  case "$*" in
    "") ;;
    --ladder) optional+=(initdb redis-server) ;;
    --tox)  # uv fills an environment in seconds, pip in a minute
      venv=$root/.venv-tox program=tox packages=(tox tox-uv)
      optional+=(initdb redis-server chromium) ;;
    *) say "unknown argument: $*"; exit 2 ;;
  esac
  for name in "${optional[@]}"; do settled "$name" || missing+=("$name"); done
  if [ ${#missing[@]} = 0 ] && complete "$venv" "$program"; then return 0; fi
  { mkdir -p "$state" && exec 9>>"$state/lock"; } 2>/dev/null || fail "$state cannot be written."
  trap release_services EXIT
  ensure_python
  lock_within 1 || { say "waiting for another setup in this checkout"; lock_within 600; } ||
    fail "another setup has held $state/lock for 10 minutes: giving up."
  make_venv "$venv" "$program" "${packages[@]}"
  for name in ${missing[@]+"${missing[@]}"}; do ensure "$name"; done
  say "done"
}

main "$@"
