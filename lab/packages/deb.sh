#!/bin/bash
# A life of the Debian package: install, ask, upgrade, stop, remove, purge.
set -euo pipefail
source /given/packages/common.sh
mkdir -p /run/systemd/system
mv /usr/bin/systemctl /usr/bin/systemctl.real
install /given/packages/systemctl /usr/bin/systemctl

follow "Debian and Ubuntu"

# === as the unit says ===
pid=$(</run/tidegate.pid)
[[ $(stat -c %U "/proc/$pid") == tidegate ]] || fail "the server runs as $(stat -c %U "/proc/$pid")"
grep -q 'CapEff:	0000000000000000' "/proc/$pid/status" || fail "the server has capabilities"
[[ $(stat -c '%U %a' /var/lib/tidegate) == 'tidegate 700' ]] || fail "$(stat /var/lib/tidegate)"
[[ $(systemctl is-enabled tidegate) == enabled ]] || fail "the service is not enabled"
man --where tidegate >/dev/null || fail "no man page"
for file in bash-completion/completions/tidegate zsh/vendor-completions/_tidegate fish/vendor_completions.d/tidegate.fish; do
  [[ -s /usr/share/$file ]] || fail "no /usr/share/$file"
done

# === an upgrade keeps the settings, the data and the counters, and restarts the service ===
echo '  - { name: per-user, key: [user], limits: [1/day] }' >>/etc/tidegate/policy.yaml
systemctl reload tidegate
await "the new rule" eval 'tidegate check --peek user=alice | grep -q per-user'
tidegate check user=alice >/dev/null || fail "the first request of alice was refused"
token=$(</var/lib/tidegate/operator-token)

dpkg-deb --raw-extract /given/package/*.deb /tmp/next
sed -i 's/^Version: .*/Version: 99.0-1/' /tmp/next/DEBIAN/control
dpkg-deb -Znone --build /tmp/next /tmp/next.deb >/dev/null
apt-get install -y -q /tmp/next.deb >/tmp/apt 2>&1 || fail "$(cat /tmp/apt)"
await "the server after the upgrade" answers
[[ $(</run/tidegate.pid) != "$pid" ]] || fail "the upgrade did not restart the service"
grep -q 'name: per-user' /etc/tidegate/policy.yaml || fail "the upgrade changed the policy"
[[ $(</var/lib/tidegate/operator-token) == "$token" ]] || fail "the upgrade changed the token"
! tidegate check user=alice >/dev/null || fail "the upgrade forgot what alice has used"

# === the server makes only the system calls that the unit permits ===
source /given/packages/system_calls.sh

# === it ends as the unit says ===
systemctl stop tidegate
tail -n 1 /var/log/tidegate.log | grep -q 'every request was answered' || fail "$(tail /var/log/tidegate.log)"

# === what stays when it is removed, and what goes when it is purged ===
systemctl start tidegate
await "the server" answers
apt-get remove -y -q tidegate >/tmp/apt 2>&1 || fail "$(cat /tmp/apt)"
! systemctl is-active tidegate || fail "the removal did not stop the server"
[[ ! -e /usr/bin/tidegate && -e /etc/tidegate/policy.yaml && -e /var/lib/tidegate/operator-token ]] || fail "the removal took too much or too little"
apt-get purge -y -q tidegate >/tmp/apt 2>&1 || fail "$(cat /tmp/apt)"
left=$(find /etc /var/lib /usr -name '*tidegate*' -not -path '/etc/passwd*' -not -path '/etc/group*' 2>/dev/null || true)
[[ -z $left ]] || fail "the purge left $left"
