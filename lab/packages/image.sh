#!/bin/bash
# The container image: built without a registry, because it starts from nothing; then its command, user and health check.
set -euo pipefail
source /given/packages/common.sh
# Images are plain folders below /tmp, and containers are started by chroot: neither needs more of this machine than root.
export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=/tmp/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "/tmp/images"\nrunroot = "/tmp/containers"\n' >"$CONTAINERS_STORAGE_CONF"

buildah build --quiet --format docker --tag tidegate /given/package/image >/tmp/build 2>&1 || fail "$(cat /tmp/build)"
container=$(buildah from tidegate)
inspect() {
  buildah inspect --type image --format "$1" tidegate
}
[[ $(inspect '{{.Docker.Config.User}}') == 65532:65532 ]] || fail "the image runs as $(inspect '{{.Docker.Config.User}}')"
# Test is CMD and the command.
read -ra command <<<"$(inspect '{{range .Docker.Config.Entrypoint}}{{.}} {{end}}{{range .Docker.Config.Cmd}}{{.}} {{end}}')"
read -ra health <<<"$(inspect '{{range .Docker.Config.Healthcheck.Test}}{{.}} {{end}}')"

! buildah run "$container" "${health[@]:1}" >/dev/null 2>&1 || fail "the health check succeeds without a server"
buildah run "$container" "${command[@]}" >/var/log/tidegate.log 2>&1 &
await "the server in the container" answers
buildah run "$container" "${health[@]:1}" >/tmp/health 2>&1 || fail "the health check: $(cat /tmp/health)"
