# Restarts the server under strace, and compares the system calls that it makes with those that the unit permits.
# shellcheck shell=bash

# permitted GROUP: the names of the calls of a group such as @system-service.
permitted() {
  local name
  systemd-analyze syscall-filter "$1" | sed '1d; s/^ *//; /^#/d; /^$/d' | while read -r name; do
    if [[ $name == @* ]]; then permitted "$name"; else echo "$name"; fi
  done
}

trace=/var/lib/tidegate/trace
unit=/usr/lib/systemd/system/tidegate.service
systemctl stop tidegate
TRACE=$trace systemctl start tidegate
await "the server under strace" answers
tidegate check user=bob >/dev/null
systemctl reload tidegate
systemctl stop tidegate

{
  permitted @default
  for group in $(sed -n 's/^SystemCallFilter=\([^~]\)/\1/p' "$unit"); do permitted "$group"; done
} | sort -u >/tmp/permitted
for group in $(sed -n 's/^SystemCallFilter=~//p' "$unit"); do permitted "$group"; done | sort -u >/tmp/forbidden
# The first call of a traced program is its execve, which systemd makes before it applies the filter.
sed -n 's/^[0-9]* *\([a-z_0-9]*\)(.*/\1/p' "$trace" | sort -u >/tmp/made
[[ $(wc -l </tmp/made) -gt 30 ]] || fail "strace saw few system calls: $(cat /tmp/made)"
stopped=$(comm -23 /tmp/made <(comm -23 /tmp/permitted /tmp/forbidden))
[[ -z $stopped ]] || fail "the unit forbids system calls that the server makes:" $stopped
# ProcSubset=pid would hide /proc/sys, and the server could not tell that the machine was restarted.
grep -q '/proc/sys/kernel/random/boot_id.*= [0-9]' "$trace" || fail "the server could not read the id of this boot"
rm "$trace"
