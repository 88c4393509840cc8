# SPDX-License-Identifier: Apache-2.0
# Control operations per second: clients on core 0, daemon or echo on core 1.

if wanted ops; then
  place 1 "$pid_a"
  measure 0 ops 9 "$dir/a.sock" "$dir/echo.sock"
  note ping_16_clients 'raw frames (PING), one under way at each of 16 clients; thousands a second'
  note ping_pipelined_1_client 'raw frames, 64 under way'
  place 0 "$pid_a"
fi
