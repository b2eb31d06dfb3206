#!/usr/bin/env bash
# Installs what is missing; does nothing if everything is there:
#
#   scripts/setup.sh            .venv with .venv/bin/workerlab, and the load tools ab and wrk
#   scripts/setup.sh --ladder   the same, plus PostgreSQL and Redis for the ladder
#   scripts/setup.sh --tox      .venv-tox with tox instead of .venv, the same, and a browser
#
# System packages come from apt-get (as root, or with passwordless sudo) or brew. The lab works
# without them, and says what it uses. Servers are not started: the lab starts its own. Fails
# only for missing essentials, with exit code 3. Output goes to standard error. For macOS' bash 3.2.
set -euo pipefail
exec 1>&2
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
state=$root/.setup  # the lock, the output of commands, times of failed installations
system=${WORKERLAB_SYSTEM:-}  # root of the system's own files; tests use another one
python='' apt_updated='' venv_group='' hold_files=()

say() { echo "setup: $*"; }
fail() { say "$*"; exit 3; }
# step TITLE COMMAND...: shows the output of COMMAND only if it fails.
step() {
  local output=$state/output-${2##*/}; say "$1"
  "${@:2}" >"$output" 2>&1 </dev/null || { tail -n 30 "$output"; return 1; }
}

# have PROGRAM: is it installed, under any of its names? Debian and brew keep PostgreSQL's programs
# outside the PATH.
have() {
  case $1 in
    chromium) set -- chromium-headless-shell chromium chromium-browser google-chrome ;;
    initdb) set -- initdb \
      "$system"/{usr/lib/postgresql/,{opt/homebrew,usr/local}/opt/postgresql}*/bin/initdb ;;
  esac
  command -v "$@" >/dev/null 2>&1
}
# settled PROGRAM: installed, or attempted within the last hour (not every sweep tries again).
settled() { have "$1" || [ -n "$(find "$state/$1-tried" -mmin -60 2>/dev/null)" ]; }

# What an installation depends on: the requirements, and the path, because a venv cannot be moved.
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
  if [ -e "$1" ]; then return 0; else hold_files+=("$1"); fi
  printf '%b' "$4" | as_root install -D -m "$3" /dev/stdin "$2"
}
# Debian starts the servers that it installs, now and at every boot, and creates a database cluster.
# Both are disabled during this setup, unless they have been configured already.
hold_services() {
  local policy=$system/usr/sbin/policy-rc.d clusters=$system/etc/postgresql-common/createcluster.d
  hold "$policy" "$policy" 755 '#!/bin/sh\nexit 101\n' &&
    hold "$clusters" "$clusters/workerlab.conf" 644 'create_main_cluster = off\n'
}
clean_up() {
  [ ${#hold_files[@]} = 0 ] || as_root rm -rf "${hold_files[@]}" || true
  [ -z "$venv_group" ] || kill -- "-$venv_group" 2>/dev/null || true
}

# get BREW-PACKAGE APT-PACKAGE...: installs with the package manager that this user may use, if any.
get() {
  local brew=$1; shift
  if as_root apt-get --version >/dev/null 2>&1; then
    [ -n "$apt_updated" ] || { apt_updated=yes; apt update || true; }  # other mirrors may work
    [[ "$*" != *postgresql* && "$*" != *redis-server* ]] || hold_services || return 0
    apt install "$@" || true
    [[ "$*" != *redis-server* ]] || as_root systemctl disable redis-server >/dev/null 2>&1 || true
  elif [ -n "$brew" ] && have brew; then step "brew install $brew" brew install "$brew" || true; fi
}

# about PROGRAM: sets its title, its package in brew, what its absence means, and Debian's packages.
about() {
  case $1 in
    ab) set -- ab httpd "the embedded load tool 'fast' will be used" apache2-utils ;;
    wrk) set -- wrk wrk "'--tool wrk' is unavailable" wrk ;;
    initdb) set -- PostgreSQL postgresql@17 'the ladder uses SQLite' postgresql ;;
    redis-server) set -- Redis redis 'the ladder runs without its Redis cache' redis-server ;;
    chromium) set -- Chromium '' 'the report page is not tested in a browser' \
      chromium-headless-shell fonts-dejavu-core ;;
  esac
  title=$1 brew=$2 absence=$3 debian=("${@:4}")
}
# ensure PROGRAM...: installs optional programs, or says what their absence means.
ensure() {
  local name title brew absence debian packages=()
  for name in "$@"; do about "$name"; settled "$name" || packages+=("${debian[@]}"); done
  # In one call, because apt-get indexes the manual pages after each; one by one only if it fails.
  [ ${#packages[@]} -lt 2 ] || get '' "${packages[@]}"
  for name in "$@"; do
    if settled "$name"; then continue; fi
    about "$name"
    [ "$name" != chromium ] || debian=(chromium fonts-dejavu-core)  # some systems have only this
    get "$brew" "${debian[@]}"
    have "$name" || say "$title is missing and cannot be installed: $absence."
    : >"$state/$name-tried"
  done
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
  python=$without_venv; return 1
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
signal.signal(signal.SIGALRM, lambda *_: sys.exit(1)); signal.alarm($1)
fcntl.flock(9, fcntl.LOCK_EX)"
}

main() {
  local venv=$root/.venv program=workerlab packages=(-e '.[all]') optional=(ab wrk) name missing=''
  case "$*" in
    "") ;;
    --ladder) optional+=(initdb redis-server) ;;
    --tox) optional+=(initdb redis-server chromium)
      venv=$root/.venv-tox program=tox packages=(tox tox-uv) ;;  # uv is ten times as fast as pip
    *) say "unknown argument: $*"; exit 2 ;;
  esac
  for name in "${optional[@]}"; do settled "$name" || missing=$name; done
  if [ -z "$missing" ] && complete "$venv" "$program"; then return 0; fi
  { mkdir -p "$state" && exec 9>>"$state/lock"; } 2>/dev/null || fail "$state cannot be written."
  trap clean_up EXIT
  ensure_python
  lock_within 1 || { say "waiting for another setup in this checkout"; lock_within 600; } ||
    fail "another setup has held $state/lock for 10 minutes: giving up."
  set -m  # a process group of its own, which can be ended
  make_venv "$venv" "$program" "${packages[@]}" & venv_group=$!
  set +m
  ensure "${optional[@]}"
  wait "$venv_group" || exit
  say "done"
}

main "$@"
