# SPDX-License-Identifier: Apache-2.0
# Snapshots for two to sixteen nodes at the same time, each on its own link, slow enough that two processors are not the limit:
# network namespaces on a bridge, limited by tbf.

fanout_nodes=17 # the owner and sixteen readers
fanout_mbit=${BENCH_FANOUT_MBIT:-40}
fanout_link() { # NUMBER: a namespace that lives in a process of its own; sets pid_netN
  start "net$1" "0-$((cores - 1))" unshare -n -- sleep 600
  local pid=pid_net$1 own limit="root tbf rate ${fanout_mbit}mbit burst 64k latency 50ms"
  own=$(readlink /proc/self/ns/net)
  until_deadline 5 eval '[[ $(readlink "/proc/${!pid}/ns/net" 2>/dev/null) != "$own" ]]' || return 1
  ip link add "fan$1" type veth peer name eth0 netns "${!pid}" && ip link set "fan$1" master fan up &&
    nsenter -t "${!pid}" -n sh -c "ip link set lo up && ip address add 10.78.0.$1/24 dev eth0 && ip link set eth0 up &&
      tc qdisc add dev eth0 $limit" && tc qdisc add dev "fan$1" $limit
}
fanout_up() {
  ip link add fan type bridge && ip link set fan up || return 1
  for ((i = 1; i <= fanout_nodes; i++)); do fanout_link "$i" || return 1; done
}
fanout_daemon() { # NUMBER
  local net=pid_net$1 pid=pid_fan$1
  mkdir "$dir/fan$1"
  start "fan$1" "0-$((cores - 1))" nsenter -t "${!net}" -n "$build/rdtd" --config= --socket "$dir/fan$1.sock" \
    --listen "10.78.0.$1:7171" --key-file "$dir/key" --state-dir "$dir/fan$1" --backend-dir "$build/backends" \
    --trusted-network yes --interfaces eth0 --log-level warn
  until_deadline 10 answers_or_ended "fan$1" "${!pid}" && answers "fan$1" || fail "daemon fan$1 does not answer"
}

if wanted fanout; then
  if [[ ${BENCH_NETWORK:-} == inside ]] && fanout_up 2>/dev/null; then
    readers=()
    for ((i = 1; i <= fanout_nodes; i++)); do
      fanout_daemon "$i"
      ((i == 1)) || readers+=("$dir/fan$i.sock")
    done
    for n in 2 4 8 16; do
      measure "0-$((cores - 1))" fanout "$dir/fan1.sock" 33554432 1 2 fan "$fanout_mbit" "${readers[@]:0:n}"
    done
    measure "0-$((cores - 1))" fanout "$dir/fan1.sock" 33554432 8 2 fan "$fanout_mbit" "${readers[@]:0:8}"
    for ((i = 1; i <= fanout_nodes; i++)); do stop "fan$i"; done
  else
    note fanout 'left out: it needs root and a kernel that shapes links (tbf)'
  fi
  for ((i = 1; i <= fanout_nodes; i++)); do
    pid=pid_net$i
    [[ -z ${!pid:-} ]] || kill "${!pid}" 2>/dev/null || true
  done
  ip link del fan 2>/dev/null || true
fi
