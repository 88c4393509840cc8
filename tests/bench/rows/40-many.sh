# SPDX-License-Identifier: Apache-2.0
# Many objects or tensors in one call: 1,000 objects, 10,000 tensors. No process is bound to a core.

if wanted many; then
  for pid in "$pid_a" "$pid_b"; do place "0-$((cores - 1))" "$pid"; done
  measure "0-$((cores - 1))" many local 9 "$dir/a.sock"
  measure "0-$((cores - 1))" many peers 9 "$dir/b.sock" "$dir/a.sock"
  place 0 "$pid_a"
  place 1 "$pid_b"
fi
