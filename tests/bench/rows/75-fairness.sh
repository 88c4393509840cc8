# SPDX-License-Identifier: Apache-2.0
# How long a small operation of one client takes while another client floods the daemon. No process is bound to a core. The
# flood's process runs at nice 19, because the kernel and not the daemon divides the processors between processes.

fairness_rows() { # FLOOD
  if ! wanted fairness && ! wanted "fairness_$1"; then return 0; fi
  measure "0-$((cores - 1))" fairness 5 '' 19 "$dir/a.sock" "$dir/b.sock" "$1"
}
for pid in "$pid_a" "$pid_b"; do place "0-$((cores - 1))" "$pid"; done
for flood in puts fetches_of_16384 waits lists large_messages a_client_that_never_reads deaths copies moves_between_nodes; do
  fairness_rows "$flood"
done
if wanted fairness; then note put_free_p99_beside_puts 'each round 0.3 s idle (the reference), then 0.3 s of flood; the flood at nice 19'; fi
place 0 "$pid_a"
place 1 "$pid_b"
