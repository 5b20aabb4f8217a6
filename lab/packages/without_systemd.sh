#!/bin/bash
# The Debian package on a machine without systemd: it installs, starts nothing, and its command works.
set -euo pipefail
source /given/packages/common.sh
rm -f /usr/bin/systemctl

apt-get install -y -q /given/package/*.deb >/tmp/apt 2>&1 || fail "$(cat /tmp/apt)"
[[ $(stat -c '%U %a' /var/lib/tidegate) == 'tidegate 700' ]] || fail "$(stat /var/lib/tidegate)"
! answers || fail "something answers"
/given/packages/systemctl start
await "the server" answers
/given/packages/systemctl stop
apt-get purge -y -q tidegate >/tmp/apt 2>&1 || fail "$(cat /tmp/apt)"
[[ ! -e /var/lib/tidegate && ! -e /etc/tidegate ]] || fail "the purge left data"
