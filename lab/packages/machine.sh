#!/bin/bash
# Runs a command on a copy of this machine: `lab/packages/machine.sh COMMAND…`, as root.
#
#   this machine          the copy
#   /             ──►     the same files; what the command writes is in memory and ends with it (overlayfs)
#   network       ──►     a loopback interface, and nothing else
#   processes     ──►     its own; they end with the command
#
# The packages, docs/install.md and these scripts are in /given. No policy-rc.d keeps services from starting.
set -euo pipefail

if [[ ${1-} != inside ]]; then
  cd "$(dirname "$0")/../.."
  exec unshare --net --mount --pid --fork --mount-proc --propagation private -- "$PWD/lab/packages/machine.sh" inside "$@"
fi
shift

memory=$(mktemp -d)
mount -t tmpfs tmpfs "$memory"
mkdir "$memory"/{upper,work,root}
root=$memory/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$memory/upper,workdir=$memory/work" "$root"
for folder in proc sys dev; do
  mount --rbind "/$folder" "$root/$folder"
done
ip link set lo up
rm -rf "$root/usr/sbin/policy-rc.d" "$root/run/systemd"
mkdir "$root/given"
cp -r target/package docs/install.md lab/packages "$root/given"
# Not exec: this shell, the first process of the copy, also waits for the processes that others leave behind.
chroot "$root" "$@"
