# SPDX-License-Identifier: Apache-2.0
# Fetches between nodes by stream into touched memory, as the client sees them: many in flight, and one at a time. The
# owner's daemon runs on core 0; the reader's daemon, the client and the receivers of the references run on core 1.

window=32 # what ucp_am_bw of ucx_perftest has in flight
listening() { grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") 00000000:0000 0A" /proc/net/tcp; }

# The rate of all of it, in 1e9 bytes a second: perftest's column "overall", which is in MiB. Its "average" is that of the time
# since the last second began, when most of the window was posted already. The server receives, as the reader's daemon does.
# With long TCP segments, and pages of the size that our memory has (its own allocator takes huge ones where the kernel gives
# them): each is worth a factor of its own.
perftest_rate() { # BYTES COUNT WINDOW [huge]
  local server environment=(UCX_TLS=tcp UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n UCX_TCP_TX_SEG_SIZE=1028k
    UCX_TCP_RX_SEG_SIZE=1028k)
  [[ -n ${4:-} ]] || environment+=(UCX_ALLOC_PRIO=mmap)
  take_port
  env "${environment[@]}" timeout 120 taskset -c 1 ucx_perftest -p "$next_port" </dev/null >"$dir/perftest-server.log" 2>&1 &
  server=$!
  pids+=("$server")
  until_deadline 5 listening "$next_port" || fail 'ucx_perftest does not listen'
  env "${environment[@]}" timeout 120 taskset -c 0 ucx_perftest 127.0.0.1 -p "$next_port" \
    -t ucp_am_bw -s "$1" -n "$2" -w "$warmup" -O "$3" -e -f >"$dir/perftest.log" 2>&1 || fail 'ucx_perftest'
  wait "$server" || true
  unset 'pids[-1]'
  rate=$(awk 'NF == 8 && $1 ~ /^[0-9]+$/ { rate = $6 } END { printf "%.3f", rate * 1048576 / 1e9 }' "$dir/perftest.log")
  [[ $rate != 0.000 ]] || fail 'ucx_perftest says no bandwidth'
}
our_rate() { # BYTES COUNT WINDOW
  rate=$(timeout 120 taskset -c 1 "$build/tests/bench/throughput" "$dir/a.sock" "$dir/b.sock" "$1" "$2" "$warmup" "$3" stream \
    2>"$dir/throughput.log") || fail 'throughput'
}
socket_rate() { # BYTES COUNT WINDOW
  rate=$(timeout 120 taskset -c 1 "$build/tests/bench/stream" fetch "$port_stream" "$1" "$2" "$3" 2>"$dir/stream.log") ||
    fail 'stream'
}

fetch_rows() { # LABEL BYTES COUNT_OF_MANY COUNT_OF_ONE ROUNDS
  local ours warmup=5
  if (($2 >= 67108864)); then warmup=1; fi # five of these take longer than all that is measured
  if ! wanted fetch && ! wanted "fetch_$1"; then return 0; fi
  for ((round = 0; round < $5; round++)); do
    our_rate "$2" "$3" "$window"
    ours=$rate
    perftest_rate "$2" "$3" "$window"
    row "fetch_$1" GB/s higher 0.9 "$ours" "$rate"
    if (($2 == 67108864)); then
      perftest_rate "$2" "$3" "$window" huge
      row "fetch_$1_beside_huge_pages" GB/s higher null "$ours" "$rate"
    fi
    socket_rate "$2" "$3" "$window"
    row "fetch_$1_by_socket" GB/s higher null "$ours" "$rate"
    our_rate "$2" "$4" 1
    ours=$rate
    perftest_rate "$2" "$4" 1
    row "fetch_$1_one_in_flight" GB/s higher null "$ours" "$rate"
    socket_rate "$2" "$4" 1
    row "fetch_$1_one_in_flight_by_socket" GB/s higher null "$ours" "$rate"
  done
  note "fetch_$1_by_socket" 'the same figure beside a plain TCP connection'
}
place 0 "$pid_a"
place 1 "$pid_b"
if [[ fetch =~ $wanted || fetch_64K =~ $wanted || $wanted == *fetch* ]]; then
  take_port
  port_stream=$next_port
  start_program stream_server 0 stream serve "$port_stream"
fi
fetch_rows 64K 65536 4000 1000 5
fetch_rows 1M 1048576 800 300 5
fetch_rows 16M 16777216 50 20 5
fetch_rows 64M 67108864 16 8 5
fetch_rows 256M 268435456 6 3 3
fetch_rows 1G 1073741824 2 1 3
