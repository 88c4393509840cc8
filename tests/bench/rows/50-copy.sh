# SPDX-License-Identifier: Apache-2.0
# Copies into memory of the reader on one node, beside the fastest copy that the reader could make itself. No process is
# bound to a core. The daemon runs with its default number of worker threads, and the reference may use as many.

workers=$("$build/rdtd" --config= --dump-config | sed -n 's/^worker_threads *= *//p')
copy_row() { # LABEL BYTES ROUNDS
  if ! wanted copy && ! wanted "copy_$1"; then return 0; fi
  measure "0-$((cores - 1))" copy "$3" "$dir/a.sock" "$workers" "$2" "$1"
}
place "0-$((cores - 1))" "$pid_a"
copy_row 1M 1048576 41
copy_row 4M 4194304 31
copy_row 16M 16777216 21
copy_row 64M 67108864 11
copy_row 256M 268435456 7
copy_row 1G 1073741824 5
place 0 "$pid_a"
