#!/bin/bash
# The static program: what docs/install.md says, and names of stores that DNS knows, in a root directory without any library.
set -euo pipefail
source /given/packages/common.sh

follow "Any Linux"
kill -TERM "$(pgrep -x tidegate)"
await "the end of the server" eval '! pgrep -x tidegate'

root=/bare
mkdir -p "$root/etc" "$root/dev"
# Random numbers come from /dev/random, which containers have, too.
mount --bind /dev "$root/dev"
cp /given/package/image/tidegate "$root"
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
python3 /given/packages/dns.py &
redis-server --port 6379 --save '' >/tmp/redis.log &

# asks HOSTS: whether a server finds its store by name, if /etc/nsswitch.conf says this about hosts.
asks() {
  if [[ $1 ]]; then echo "hosts: $1" >"$root/etc/nsswitch.conf"; else rm -f "$root/etc/nsswitch.conf"; fi
  chroot "$root" /tidegate serve --store redis://store.test:6379/ --data-dir /data >/var/log/tidegate.log 2>&1 &
  await "a store named by DNS, with hosts: \"$1\"" answers
  kill -TERM $!
  wait $! || fail "$(tail -n 3 /var/log/tidegate.log)"
}

asks ''
asks 'files dns'
# Modules that are not installed, as on a machine with systemd-resolved.
asks 'mymachines resolve [!UNAVAIL=return] files myhostname dns'
