# SPDX-License-Identifier: Apache-2.0
# How long a small operation takes while 10 GB move. No process is bound to a core.

if wanted moving; then
  for pid in "$pid_a" "$pid_b"; do place "0-$((cores - 1))" "$pid"; done
  measure "0-$((cores - 1))" moving 5 put_free_p99_while_10g_come "$dir/b.sock" "$dir/a.sock" 2000000000
  measure "0-$((cores - 1))" moving 5 put_free_p99_while_10g_are_copied "$dir/b.sock" "$dir/b.sock" 2000000000
  note put_free_p99_while_10g_come '2 GB in each of 5 rounds, from the other node; reference: the same daemon, idle'
  note put_free_p99_while_10g_are_copied 'the same by copies on this node'
  place 0 "$pid_a"
  place 1 "$pid_b"
fi
