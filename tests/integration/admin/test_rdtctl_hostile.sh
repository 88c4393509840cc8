#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl refuses files with false headers and says what is wrong; nothing of them stays in the daemon, and a correct file
# can be put afterwards. (unit/client/safetensors tests the headers themselves.) Ids and names that
# contain control sequences of terminals are printed as plain text.
set -uo pipefail
. "$(dirname "$0")/rdtctl.sh"

serve "$RDT_SOCKET" "$dir/log" --state-dir "$dir" --memory-limit 64MiB
pids+=("$daemon")

# file NAME HEADER_FILE [DATA_BYTES]: a safetensors file with the header's true length and so many zeros
file() {
  local n length i
  n=$(stat -c %s "$2")
  for ((i = 0; i < 8; i++)); do printf -v length '%s\\x%02x' "${length:-}" $((n >> 8 * i & 255)); done
  { printf '%b' "$length"; cat "$2"; } >"$dir/$1"
  truncate -s "+${3:-0}" "$dir/$1"
}
refused() { # NAME STATUS PATTERN: put says so, within a minute
  timeout 60 "$rdtctl" put "$dir/$1" --for 1ms >"$dir/out" 2>&1
  local got=$?
  [[ $got == 1 ]] && grep -qE "^rdtctl: put: $2: .*$3" "$dir/out" ||
    bad "$1: status $got, '$2: $3' expected: $(head -c 600 "$dir/out")"
}

seq 140000 | awk 'BEGIN {printf "{"} {printf "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", (NR > 1 ? "," : ""), $1} END {printf "}"}' >"$dir/h"
file many.safetensors "$dir/h"
refused many.safetensors LIMIT '(140000|[0-9]+ bytes)' # of the tensors, or of the header that names them
seq 132000 | awk 'BEGIN {printf "{"} {printf "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", (NR > 1 ? "," : ""), $1} END {printf "}"}' >"$dir/h"
file many_short.safetensors "$dir/h"
refused many_short.safetensors LIMIT '132000'
printf '{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' "$(printf '1,%.0s' {1..40})1" >"$dir/h"
file dims.safetensors "$dir/h" 1
refused dims.safetensors INVALID '41 dimensions'
printf '{"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,9223372036854775807]}}' >"$dir/h"
file huge.safetensors "$dir/h"
refused huge.safetensors INVALID 'out of range: the file has 0 bytes'
printf '{"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}}' >"$dir/h"
file sparse.safetensors "$dir/h" 1099511627776 # a terabyte of holes in a daemon of 64 MiB
refused sparse.safetensors 'LIMIT|NO_MEMORY' 'memory_limit'
awk 'BEGIN {printf "{\"a\":"; for (i = 0; i < 1000000; i++) printf "["}' >"$dir/h"
file deep.safetensors "$dir/h"
refused deep.safetensors INVALID 'not valid JSON'
head -c 9000000 /dev/zero | tr '\0' ' ' >"$dir/h"
file long.safetensors "$dir/h"
refused long.safetensors LIMIT '9000000 bytes; at most 8388608'
printf '\377\377\377\377\377\377\377\377{}' >"$dir/claims.safetensors"
refused claims.safetensors INVALID 'claims 18446744073709551615 bytes, the file has 2'
mkfifo "$dir/fifo.safetensors"
refused fifo.safetensors INVALID 'not a regular file'
refused . INVALID 'not a regular file'
ln -s loop.safetensors "$dir/loop.safetensors"
refused loop.safetensors SYSTEM 'symbolic links'
: >"$dir/empty.safetensors"
refused empty.safetensors INVALID 'too short'
printf '\x93NUMPY\x01' >"$dir/array.npy"
refused array.npy UNSUPPORTED 'rdtctl puts safetensors files only: put arrays of numpy in Python'
printf 'PK\3\4' >"$dir/arrays.npz"
refused arrays.npz UNSUPPORTED 'put arrays of numpy in Python'

"$rdtctl" status --json >"$dir/status"
grep -q '"objects": 0' "$dir/status" && grep -q '"regions": 0' "$dir/status" || bad "something stays: $(cat "$dir/status")"
printf '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}' >"$dir/h"
file honest.safetensors "$dir/h" 4
timeout 60 "$rdtctl" put "$dir/honest.safetensors" --for 1ms >"$dir/out" 2>&1 || bad "an honest file: $(cat "$dir/out")"

evil=$'a\xc2\x9b2Jb\xe2\x80\xaec\e[31md' # a C1 control, a direction override and an escape sequence
timeout 60 "$rdtctl" put "$dir/honest.safetensors" --detached --id "$evil" --publish "$evil" --quiet >"$dir/ref" ||
  bad "an id of odd characters is refused"
for command in objects names "objects --json" "names --json" "stat $(cat "$dir/ref")" "free no$evil" "fetch --name no$evil --timeout 200ms -o $dir/never"; do
  # shellcheck disable=SC2086 # a command and its words
  "$rdtctl" $command >"$dir/out" 2>&1
  grep -q 'a.*b.*c.*d' "$dir/out" || bad "rdtctl $command does not show the id: $(cat -v "$dir/out")"
  LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]\|\xc2[\x80-\x9f]\|\xe2\x80[\xaa-\xae]' "$dir/out" &&
    bad "rdtctl $command prints what a terminal obeys: $(cat -v "$dir/out")"
done

forged=$'x\n12:34:56.789 object freed y\nrdtctl: all is well' # lines of its own would look like those of rdtctl
for command in stat free shards unpublish; do
  "$rdtctl" "$command" "$forged" >"$dir/out" 2>&1
  (($(wc -l <"$dir/out") == 1)) || bad "rdtctl $command prints more than one line: $(cat -v "$dir/out")"
done
"$rdtctl" watch transfers --timeout 60s >"$dir/events" 2>"$dir/err" &
watcher=$!
until_true grep -q watching "$dir/err" || bad "no watcher: $(cat "$dir/err")"
"$rdtctl" fetch "$forged" -o "$dir/never" --timeout 100ms 2>/dev/null
until_true grep -q TIMED_OUT "$dir/events" || bad "no event: $(cat -v "$dir/events")"
grep -q '^rdtctl:\|object freed y$' "$dir/events" && bad "watch prints the lines of an id: $(cat -v "$dir/events")"
kill "$watcher"
wait "$watcher"

((failures == 0))
