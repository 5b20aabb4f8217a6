#!/bin/bash
# A cluster on this machine for trying out failures: `make cluster`.
#
#                        ┌► tidegate :8081 ─┐        Redis Cluster: three primaries
#   you ─► HAProxy :8080 ┼► tidegate :8082 ─┼──────► 7101 7102 7103, and a replica for each:
#                        └► tidegate :8083 ─┘        7104 7105 7106
#
# All servers listen on the loopback address only. Their files are in target/cluster, which is emptied at each start. The script
# stays in the foreground. When it ends, all its servers end: the kernel kills them (setpriv --pdeathsig), even after kill -9.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=target/cluster
tidegate=${CARGO_TARGET_DIR:-target}/first/tidegate
redis_ports=(7101 7102 7103 7104 7105 7106)
http_ports=(8081 8082 8083)
front_port=8080
store=redis+cluster://127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103
patience_seconds=15

# The names of the running servers, by process id.
declare -A names=()

main() {
  trap stop EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  check_programs
  check_ports
  rm -rf "$folder"
  mkdir -p "$folder"
  start_redis
  start_tidegate
  start_haproxy
  greet
  report_ends
}

fail() {
  echo "cluster: $*" >&2
  exit 1
}

# === checks before the start ===

check_programs() {
  local program
  for program in redis-server redis-cli haproxy curl setpriv; do
    command -v "$program" >/dev/null || fail "$program is missing; \`make deps\` installs it"
  done
  [[ -x $tidegate ]] || fail "$tidegate is missing; \`cargo build --profile first -p tidegate-server\` builds it"
}

check_ports() {
  local port
  # The nodes of a Redis Cluster talk to each other on ports 10,000 above their own.
  for port in "${redis_ports[@]}" "${redis_ports[@]/#/1}" "${http_ports[@]}" "$front_port"; do
    if (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      fail "port $port is in use; stop the other cluster or \`make run\` first"
    fi
  done
}

# === starting ===

# start NAME COMMAND…: runs the command in the background, with its output in NAME.log.
start() {
  local name=$1
  shift
  setpriv --pdeathsig KILL "$@" >"$folder/$name.log" 2>&1 </dev/null &
  names[$!]=$name
}

# await WHAT COMMAND…: repeats the command until it succeeds. Fails when a server has ended or it takes too long.
await() {
  local what=$1 pid end=$((SECONDS + patience_seconds))
  shift
  until "$@" >/dev/null 2>&1; do
    for pid in "${!names[@]}"; do
      kill -0 "$pid" 2>/dev/null || fail "${names[$pid]} has ended: $(tail -n 5 "$folder/${names[$pid]}.log")"
    done
    ((SECONDS < end)) || fail "$what is not ready after $patience_seconds s; the logs are in $folder"
    sleep 0.1
  done
}

start_redis() {
  local port
  for port in "${redis_ports[@]}"; do
    mkdir "$folder/$port"
    start "redis-$port" redis-server --bind 127.0.0.1 --port "$port" --dir "$folder/$port" \
      --save '' --appendonly no --repl-diskless-sync-delay 0 \
      --cluster-enabled yes --cluster-node-timeout 2000
  done
  for port in "${redis_ports[@]}"; do
    await "redis-server on $port" redis-cli -p "$port" ping
  done
  redis-cli --cluster create "${redis_ports[@]/#/127.0.0.1:}" --cluster-replicas 1 --cluster-yes \
    >"$folder/create.log" || fail "Redis Cluster: $(tail -n 5 "$folder/create.log")"
  for port in "${redis_ports[@]}"; do
    await "the cluster as $port sees it" is_whole "$port"
  done
}

# Whether a node sees the whole cluster and, if it is a replica, is connected to its primary.
is_whole() {
  redis-cli -p "$1" cluster info | grep -q 'cluster_state:ok' &&
    ! redis-cli -p "$1" info replication | grep -q 'master_link_status:down'
}

start_tidegate() {
  cat >"$folder/policy.yaml" <<-'POLICY'
	version: 1
	rules:
	  - { name: per-user, key: [user|ip], limits: [{ rate: 10/min, algorithm: sliding_log }] }
	POLICY
  local port
  for port in "${http_ports[@]}"; do
    start "tidegate-$port" "$tidegate" serve --store "$store" --policy "$folder/policy.yaml" \
      --secret-file "$folder/secret" --data-dir "$folder/tidegate-$port" \
      --http-listen "127.0.0.1:$port" --resp-listen off --grpc-listen off --admin-listen off
    # One after another: the first node creates the secret that the others read.
    await "tidegate on $port" is_ready "$port"
  done
}

# A node that cannot reach its store answers too, but with `degraded`.
is_ready() {
  curl -sf "http://127.0.0.1:$1/ready" | grep -q '"status":"ready"'
}

start_haproxy() {
  local port
  {
    cat <<-CONFIG
	defaults
	    mode http
	    timeout connect 1s
	    timeout client 30s
	    timeout server 30s
	    retries 2
	    option redispatch 1
	listen tidegate
	    bind 127.0.0.1:$front_port
	    balance roundrobin
	    http-response set-header x-node %s
	    # A node that cannot reach Redis answers 200 and \`degraded\`. It still limits with local counters, so it keeps its traffic.
	    option httpchk GET /ready
	    http-check expect status 200
	    default-server check inter 500ms fall 2 rise 1
	CONFIG
    for port in "${http_ports[@]}"; do
      echo "    server tidegate-$port 127.0.0.1:$port"
    done
  } >"$folder/haproxy.cfg"
  start haproxy haproxy -db -f "$folder/haproxy.cfg"
  await "HAProxy on $front_port" is_ready "$front_port"
}

# === running ===

greet() {
  local pid primary=
  echo "The cluster is running; its files and logs are in $folder."
  echo
  for pid in $(printf '%s\n' "${!names[@]}" | sort -n); do
    printf '  %-14s pid %-8s %s\n' "${names[$pid]}" "$pid" "$(role "${names[$pid]}")"
    [[ ${names[$pid]} != "redis-${redis_ports[0]}" ]] || primary=$pid
  done
  cat <<TRY

Try, in another terminal:

  # Three nodes share one limit: 10 of 12 requests pass, whichever nodes they reach. x-node names the node that answered.
  curl -s -o /dev/null -D - 'http://127.0.0.1:$front_port/v1/check?[1-12]' -H 'content-type: application/json' -d '{"attributes":{"user":"alice"}}' |
    awk '/^HTTP/ { status = \$2 } /^x-node/ { print status, \$2 }'

  # Kill a primary; its replica takes over.
  kill -9 $primary

  # Show the role of each Redis node now.
  redis-cli -p ${redis_ports[1]} cluster nodes

Ctrl-C stops the cluster.
TRY
}

# The role or the address of a server.
role() {
  case $1 in
    redis-*) redis-cli -p "${1#redis-}" role | head -n 1 | sed 's/master/primary/; s/slave/replica/' ;;
    tidegate-*) echo "http://127.0.0.1:${1#tidegate-}" ;;
    haproxy) echo "http://127.0.0.1:$front_port, in front of the tidegate nodes" ;;
  esac
}

# Reports when a server ends, and keeps the others running: this script is for watching what happens then.
report_ends() {
  local ended
  while ((${#names[@]} > 0)); do
    wait -n -p ended "${!names[@]}" 2>/dev/null || true
    echo "$(date +%T) ${names[$ended]} (pid $ended) has ended"
    unset "names[$ended]"
  done
}

# Kills all servers; none of them has data to keep.
stop() {
  trap '' INT TERM HUP
  if ((${#names[@]} > 0)); then
    kill -KILL "${!names[@]}" 2>/dev/null || true
    wait 2>/dev/null
  fi
}

main
