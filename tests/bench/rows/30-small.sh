# SPDX-License-Identifier: Apache-2.0
# A small fetch between nodes: first with each process on its own core, or on two cores with no process on the same core as
# the one it talks to; then with all on one core. The TCP reference runs at the owner's side, seen from the client.

if wanted small; then
  if ((cores > 2)); then client=2 owner=0; else client=0 owner=1; fi
  place 0 "$pid_a"
  place 1 "$pid_b"
  place 1 "$pid_echo"
  place "$owner" "$pid_echo_tcp"
  measure "$client" control peers '' 25 "$dir/b.sock" "$dir/echo.sock" "$dir/a.sock" "$port_echo"
  for pid in "$pid_a" "$pid_b" "$pid_echo" "$pid_echo_tcp"; do place 0 "$pid"; done
  measure 0 control peers _one_core 25 "$dir/b.sock" "$dir/echo.sock" "$dir/a.sock" "$port_echo"
  note small_fetch_between_nodes '4 KiB, inline; reference: one TCP round trip with 4 KiB and two of a Unix socket'
  place 1 "$pid_b"
  place 1 "$pid_echo"
fi
