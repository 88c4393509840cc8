# SPDX-License-Identifier: Apache-2.0
# A store of 64 objects of 4 MiB under ids: detached objects beside those of a session, and replacing them. No process is bound
# to a core.

if wanted store; then
  place "0-$((cores - 1))" "$pid_a"
  measure "0-$((cores - 1))" store 9 "$dir/a.sock"
  place 0 "$pid_a"
fi
