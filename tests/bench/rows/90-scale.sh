# SPDX-License-Identifier: Apache-2.0
# A million objects, a thousand clients, ten thousand waiters and 64 peers of one daemon, beside another daemon that has few
# of each. The peers have host memory only, because they are not measured.

measure_scale() {
  local i sockets=()
  start_daemon many 0 --max-objects 4000000 # one client has a quarter of them
  start_daemon few 0
  for ((i = 1; i <= ${BENCH_PEERS:-64}; i++)); do
    take_port
    start "peer$i" 1 "$build/rdtd" --config= --socket "$dir/peer$i.sock" --listen "127.0.0.1:$next_port" --key-file "$dir/key" \
      --state-dir "" --backend-dir "" --backend "$build/backends/rdt_host.so" --log-level warn
    sockets+=("$dir/peer$i.sock")
  done
  for ((i = 1; i <= ${#sockets[@]}; i++)); do until_deadline 20 answers "peer$i" || fail "peer $i does not answer"; done
  measure 1 scale "${BENCH_OBJECTS:-1000000}" "$dir/many.sock" "$pid_many" "$dir/few.sock" "${sockets[@]}"
  for ((i = 1; i <= ${#sockets[@]}; i++)); do stop "peer$i"; done
  stop many
  stop few
}
if wanted scale; then measure_scale; fi
