# SPDX-License-Identifier: Apache-2.0
# Fetches between nodes by the transport "stream", beside a plain socket: unencrypted where the network is trusted, with TLS
# 1.3 and the same cipher suite where it is not. The owner's daemon runs on core 0; the reader's daemon, the client and the
# receivers of the references run on core 1.

stream_ours() { # OWNER READER BYTES COUNT WINDOW
  rate=$(timeout 120 taskset -c 1 "$build/tests/bench/throughput" "$dir/$1.sock" "$dir/$2.sock" "$3" "$4" "$warmup" "$5" stream \
    2>"$dir/throughput.log") || fail 'throughput'
}
stream_reference() { # PORT BYTES COUNT WINDOW [tls]
  rate=$(timeout 120 taskset -c 1 "$build/tests/bench/stream" fetch "$@" 2>"$dir/stream.log") || fail 'stream'
}
stream_rows() { # LABEL BYTES COUNT WINDOW ROUNDS
  local ours warmup=2
  if (($2 > 16777216)); then warmup=1; fi
  if ! wanted stream && ! wanted "stream_$1"; then return 0; fi
  for ((round = 0; round < $5; round++)); do
    stream_ours a b "$2" "$3" "$4"
    ours=$rate
    stream_reference "$port_bare" "$2" "$3" "$4"
    row "stream_$1" GB/s higher 0.9 "$ours" "$rate"
    stream_ours tls_a tls_b "$2" "$3" "$4"
    ours=$rate
    stream_reference "$port_tls" "$2" "$3" "$4" tls
    row "stream_tls_$1" GB/s higher 0.9 "$ours" "$rate"
  done
}

if [[ stream =~ $wanted || $wanted == *stream* ]]; then
  place 0 "$pid_a"
  place 1 "$pid_b"
  start_daemon tls_a 0 --trusted-network no
  start_daemon tls_b 1 --trusted-network no
  take_port
  port_bare=$next_port
  start_program stream_bare 0 stream serve "$port_bare"
  take_port
  port_tls=$next_port
  start_program stream_tls 0 stream serve "$port_tls" tls
  stream_rows 1M 1048576 400 32 7
  stream_rows 16M 16777216 24 32 7
  stream_rows 64M 67108864 8 32 5
  stream_rows 256M 268435456 3 32 3
  stop tls_a
  stop tls_b
fi
