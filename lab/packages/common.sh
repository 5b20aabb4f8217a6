# What the scenarios share.
# shellcheck shell=bash

# The longest time that anything may take, on a busy machine.
patience_seconds=60

fail() {
  echo "$*" >&2
  exit 1
}

# documented SECTION: the commands that docs/install.md prints in a section.
documented() {
  awk -v section="## $1" '/^## / { within = $0 == section } within && sub(/^\$ /, "")' /given/install.md
}

# follow SECTION: does what docs/install.md says, in a clean directory beside the packages. The last command is the hundred questions, of
# which some must be allowed and some refused.
follow() {
  local commands=() command last
  mapfile -t commands < <(documented "$1")
  ((${#commands[@]} >= 2 && ${#commands[@]} <= 3)) || fail "$1: ${#commands[@]} commands up to the first refusal; at most 3"
  mkdir /clean
  cd /clean || exit
  cp /given/package/*.deb /given/package/*.tar.gz .
  last=${commands[-1]}
  unset 'commands[-1]'
  for command in "${commands[@]}"; do
    # To a file: a server in the background keeps a pipe open.
    bash -c "$command" >/tmp/output 2>&1 </dev/null || fail "$command: $(cat /tmp/output)"
  done
  # A person needs longer for the next command than the server to start.
  await "the server; $(tail -n 3 /tmp/output)" answers
  bash -c "$last" >/tmp/output 2>&1 || fail "$last: $(cat /tmp/output)"
  [[ $(</tmp/output) == *200*429* ]] || fail "no refusal: $(cat /tmp/output)"
}

# await WHAT COMMAND…: repeats the command until it succeeds.
await() {
  local what=$1 end=$((SECONDS + patience_seconds))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || fail "$what: not after $patience_seconds s; $(tail -n 5 /var/log/tidegate.log 2>&1)"
    sleep 0.1
  done
}

answers() {
  curl -sf http://127.0.0.1:8080/ready | grep -q '"status":"ready"'
}

# A machine without sudo: the test is root already.
command -v sudo >/dev/null || { printf '#!/bin/sh\nexec "$@"\n' >/usr/local/bin/sudo && chmod +x /usr/local/bin/sudo; }
