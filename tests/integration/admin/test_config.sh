#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl config: the value that is in force for each key, and the line, variable or flag that it comes from.
set -uo pipefail
. "$(dirname "$0")/rdtctl.sh"

row() { grep -E "^\[$1\] $2 " "$dir/out" | sed -E 's/ {2,}/|/g'; }
shows() { # SECTION KEY VALUE FROM
  [[ $(row "$1" "$2") == "[$1] $2|$3|$4" ]] || bad "[$1] $2 = $3 from $4 is shown as '$(row "$1" "$2")'"
}

printf '[daemon]\nstate_dir =\nmemory_limit = 64M\n[stream]\nports = 0\n[transfer]\nstall_timeout = 7s\n' >"$dir/conf"
RDTD_STALL_TIMEOUT=9s serve "$RDT_SOCKET" "$dir/log" --config "$dir/conf" --max-clients 77 --set transfer.chunks_in_flight=3
pids+=("$daemon")

status 0 "$rdtctl" config
shows daemon memory_limit 64MiB "$dir/conf:3"
shows daemon max_clients 77 --max-clients
shows daemon socket "$RDT_SOCKET" --socket
shows transfer stall_timeout 9s RDTD_STALL_TIMEOUT
shows transfer chunks_in_flight 3 --chunks-in-flight
shows stream ports 0 "$dir/conf:5"
shows daemon log_level info default
row daemon cache_max | grep -q '|0, which is 32.0 MiB here|default$' || bad "cache_max is shown as '$(row daemon cache_max)'"
row limits owner_max_names | grep -q '|default$' || bad "owner_max_names is shown as '$(row limits owner_max_names)'"

# ---- what is changed later ----

sed -i 's/^stall_timeout.*/chunk = 1M/; s/^memory_limit = .*/\n# larger\nmemory_limit = 96M/' "$dir/conf"
status 0 "$rdtctl" reload
status 0 "$rdtctl" log-level debug
status 0 "$rdtctl" config --changed
shows daemon log_level debug 'rdtctl log-level'
row daemon memory_limit | grep -q "|$dir/conf:5\$" || bad "memory_limit is shown as '$(row daemon memory_limit)'"
says '^\[daemon\] memory_limit +96'
grep -q default "$dir/out" && bad "--changed shows a default: $(cat "$dir/out")"
status 0 "$rdtctl" config max_clients --json
says '"source": "flag"'
status 1 "$rdtctl" config nothing
says 'NOT_FOUND: .*no key or section .nothing'
((failures == 0))
