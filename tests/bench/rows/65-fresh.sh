# SPDX-License-Identifier: Apache-2.0
# Fetches between nodes into memory that the daemon allocates, beside fetches into the client's memory that was touched
# before.

fresh_row() { # LABEL BYTES COUNT ROUNDS
  if wanted fresh || wanted "fresh_$1"; then
    measure 1 fresh "$dir/a.sock" "$dir/b.sock" "$2" "$3" "$4" "$1"
  fi
}
fresh_row 1M 1048576 200 5
fresh_row 4M 4194304 50 5
fresh_row 16M 16777216 12 5
fresh_row 64M 67108864 4 5
fresh_row 256M 268435456 2 3
