#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl and files, on one daemon: put and fetch, waiting, freeing, and what the lists show.
set -uo pipefail
. "$(dirname "$0")/rdtctl.sh"

awaited() { "$rdtctl" stat "$1" 2>/dev/null | grep -q '^state  *awaited'; }
is_empty() { "$rdtctl" objects --json | grep -q '"objects": \[\]'; }

serve "$RDT_SOCKET" "$dir/log" --state-dir "$dir"
pids+=("$daemon")

# Offsets at odd places, an empty tensor, a scalar, two that are not in the order of the header, spaces behind the header.
header='{"__metadata__":{"k":"v"},"z":{"dtype":"F32","shape":[2,2],"data_offsets":[3,19]},'
header+='"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"none":{"dtype":"I64","shape":[0,4],"data_offsets":[3,3]},'
header+='"step":{"dtype":"I64","shape":[],"data_offsets":[19,27]}}  '
printf -v length '\\x%02x\\x%02x' $((${#header} & 255)) $((${#header} >> 8))
printf '%b%s%s' "$length\0\0\0\0\0\0" "$header" 'abcdefghijklmnopqrstuvwxyz!' >"$dir/in.safetensors"

put() { # ARGUMENTS ...: sets ref and actor
  exec {refs}< <(exec "$rdtctl" put -q "$dir/in.safetensors" "$@" 2>"$dir/actor")
  actor=$!
  pids+=("$actor")
  read -r -t 30 -u "$refs" ref || bad "put $*: no ref: $(cat "$dir/actor")"
  exec {refs}<&-
}
ends_with() { # STATUS: the actor
  local got
  until_true eval '! kill -0 "$actor" 2>/dev/null' || { bad 'the actor does not end'; return; }
  wait "$actor"
  got=$?
  [[ $got == "$1" ]] || bad "the actor ended with status $got, expected $1: $(cat "$dir/actor")"
}

# ---- there and back ----

put --id w
for mode in auto share copy; do
  status 0 "$rdtctl" fetch "$ref" -o "$dir/out.$mode" --mode "$mode" --timeout 20s
  says '^w: 4 tensors, 27 B by local/'
  cmp "$dir/in.safetensors" "$dir/out.$mode" || bad "mode $mode changed the file"
done
status 0 "$rdtctl" fetch w -o "$dir/out.json" --json
says '"named": true'
says '"bytes": 27'
[[ $(stat -c %a "$dir/out.json") == $(printf %o $((0666 & ~$(umask)))) ]] ||
  bad 'the file has other permissions than the umask says'
status 0 "$rdtctl" wait w --timeout 5s
status 0 "$rdtctl" stat w
says '^content +4 tensors, 27 B'
status 0 "$rdtctl" objects --prefix w --state live
says '^w +live '
status 0 "$rdtctl" objects --prefix other
says '^no objects$'
for view in status regions clients peers backends transfers "explain $ref"; do
  # shellcheck disable=SC2086
  status 0 "$rdtctl" $view
  # shellcheck disable=SC2086
  status 0 "$rdtctl" $view --json
done


# ---- what outlives the command ----

status 0 "$rdtctl" put "$dir/in.safetensors" --id stays --snapshot --detached --ttl 1h
says 'for 1'
status 0 "$rdtctl" stat stays
says '^snapshot .*never changes'
says '^detached .*outlives client .* stays for'
says 'because .*it is detached'
status 0 "$rdtctl" objects
says 'snapshot, detached, .* left'
status 0 "$rdtctl" fetch -q stays -o "$dir/stays.safetensors"
cmp "$dir/in.safetensors" "$dir/stays.safetensors" || bad 'what stayed differs'

# A header of 19,280 bytes begins with "PK", as an archive does.
{
  printf 'PK\0\0\0\0\0\0'
  printf '%-19280s' '{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
  printf abc
} >"$dir/pk.safetensors"
status 0 "$rdtctl" put "$dir/pk.safetensors" --id pk --snapshot --detached --ttl 1h
status 0 "$rdtctl" fetch -q pk -o "$dir/pk2.safetensors"
status 2 "$rdtctl" fetch pk -o "$dir/pk.npy"
says 'the ending .npy stands for: .*--format safetensors, or use Python .numpy.save'
status 0 "$rdtctl" fetch w -o "$dir/named.pt" --format safetensors
cmp "$dir/in.safetensors" "$dir/named.pt" || bad 'a safetensors file with another ending is changed'
status 0 "$rdtctl" put -q "$dir/in.safetensors" --id pk --replace --detached --ttl 1h
status 0 "$rdtctl" fetch -q pk -o "$dir/pk3.safetensors"
cmp "$dir/in.safetensors" "$dir/pk3.safetensors" || bad 'what replaced pk differs'
status 2 "$rdtctl" put "$dir/in.safetensors" --replace
says '--replace needs --id'
status 0 "$rdtctl" free pk
status 0 "$rdtctl" put "$dir/in.safetensors" --id block --evictable
says '; stays in the cache until its memory is wanted$'
status 0 "$rdtctl" put "$dir/in.safetensors" --id block --evictable --replace --ttl 1h
says '; stays in the cache for at most 1'
status 0 "$rdtctl" free --prefix block
says '^1 object is freed$'
status 0 "$rdtctl" free --prefix block
says 'only detached and evictable ones can be$'
status 0 "$rdtctl" free stays
status 0 "$rdtctl" put "$dir/in.safetensors" --detached --ttl 1s --json
says '"ref": "rdt:'
grep -q '"version"' "$dir/out" && bad 'a version of what has no name'
status 1 "$rdtctl" stat stays
status 1 "$rdtctl" put -q "$dir/in.safetensors" --detached --ttl 48h
says 'LIMIT: .*detached_ttl_max'

# ---- refusals ----

status 1 "$rdtctl" put "$dir/in.safetensors" --id w
says 'rdtctl: put: EXISTS: '
status 1 "$rdtctl" put "$dir/in.safetensors" --transport nosuch
says 'rdtctl: put: UNSUPPORTED: '
status 1 "$rdtctl" stat nobody
says 'rdtctl: stat: NOT_FOUND: '
status 4 "$rdtctl" wait nobody --timeout 100ms
says 'rdtctl: wait: TIMED_OUT: '
status 4 "$rdtctl" fetch nobody -o "$dir/never" --timeout 100ms --json
says '"status": "TIMED_OUT"'
status 1 "$rdtctl" fetch w -o "$dir/no/such/folder/x"
says 'rdtctl: fetch: SYSTEM: .*No such file'
compgen -G "$dir/never*" >/dev/null && bad 'a fetch that failed left a file'

# ---- the ends of an object ----

status 0 "$rdtctl" free w --force
says 'w is freed'
status 1 "$rdtctl" fetch "$ref" -o "$dir/never" --timeout 5s
says 'FREED|NOT_FOUND'
kill -TERM "$actor"
ends_with 0
until_true is_empty || bad 'the object outlived its actor'

put --id short --for 50ms
ends_with 0

# ---- a fetch that waits for its put, and one that is interrupted ----

"$rdtctl" fetch later -o "$dir/later" --timeout 30s >"$dir/fetched" 2>&1 &
fetcher=$!
pids+=("$fetcher")
until_true awaited later || bad 'nobody waits for the object'
put --id later
until_true eval '! kill -0 "$fetcher" 2>/dev/null' || bad 'the fetch does not end'
wait "$fetcher" || bad "the fetch that waited: $(cat "$dir/fetched")"
cmp "$dir/in.safetensors" "$dir/later" || bad 'the fetch that waited changed the file'

"$rdtctl" fetch never -o "$dir/never" >"$dir/fetched" 2>&1 &
fetcher=$!
pids+=("$fetcher")
until_true awaited never || bad 'nobody waits for the object'
until_true grep -q '^never: waiting until it is put$' "$dir/fetched" || bad 'a log does not hear what is waited for'
kill -INT "$fetcher"
kill -TERM "$fetcher"
wait "$fetcher"
grep -q 'rdtctl: fetch: CANCELLED: ' "$dir/fetched" || bad "an interrupted fetch says $(cat "$dir/fetched")"
compgen -G "$dir/never*" >/dev/null && bad 'an interrupted fetch left a file'

# ---- time-outs say what was missing, and end at the asked time ----

timed_out() { # SECONDS SENTENCE COMMAND ...
  local limit=$1 sentence=$2 before took
  shift 2
  for _ in 1 2 3 4 5; do # again if librdt had to say it itself, because the machine stood still
    before=${EPOCHREALTIME/./}
    status 4 "$@" --timeout "${limit}s"
    took=$((${EPOCHREALTIME/./} - before))
    grep -qE -- "$sentence" "$dir/out" "$dir/err" && break
  done
  says "$sentence"
  ((took >= limit * 1000000 && took < limit * 1000000 + 3000000)) || bad "$* --timeout ${limit}s took $took us"
}
timed_out 1 'nobody has put an object with this id' "$rdtctl" fetch nobodys -o "$dir/never"
timed_out 1 'nobody has published such a version of it' "$rdtctl" fetch --name nobodys -o "$dir/never"
timed_out 1 'waiting for "nobodys" to be put: the object was not put in time' "$rdtctl" wait nobodys
timed_out 1 'to be published: nobody has published such a version of the name in time' "$rdtctl" wait --name nobodys
kill -STOP "${pids[0]}"
timed_out 2 'TIMED_OUT' "$rdtctl" put "$dir/in.safetensors" --detached
kill -CONT "${pids[0]}"
head -c 100 /dev/zero >"$dir/zeros"
status 1 "$rdtctl" put "$dir/zeros"
says 'not a safetensors file: the header does not begin'
echo 'this is a text' >"$dir/text"
status 1 "$rdtctl" put "$dir/text"
says 'not a safetensors file, or it is truncated: the header claims'

# ---- the daemon's end ----

kill -TERM "${pids[0]}"
wait "${pids[0]}" || bad "the daemon ended with status $?"
ends_with 3
grep -q 'the object is lost' "$dir/actor" || bad "the actor says $(cat "$dir/actor")"
status 3 "$rdtctl" status

# ---- a snapshot takes its size once, not twice ----

serve "$RDT_SOCKET" "$dir/log" --state-dir "$dir" --memory-limit 24MiB
small=$daemon
pids+=("$small")
header='{"a":{"dtype":"U8","shape":[16777216],"data_offsets":[0,16777216]}}'
printf -v length '\\x%02x' "${#header}"
{ printf '%b%s' "$length\0\0\0\0\0\0\0" "$header"; head -c 16777216 /dev/urandom; } >"$dir/large"
status 0 "$rdtctl" put "$dir/large" --id large --snapshot --detached --timeout 5s
"$rdtctl" stat large | grep -q '^snapshot' || bad "stat says $("$rdtctl" stat large 2>&1)"
status 0 "$rdtctl" fetch large -o "$dir/large.back"
cmp "$dir/large" "$dir/large.back" || bad 'a snapshot comes back changed'
status 0 "$rdtctl" free large --wait 5s
status 0 "$rdtctl" put "$dir/large" --publish weights --timeout 5s
status 0 "$rdtctl" fetch --name weights -o "$dir/large.back"
cmp "$dir/large" "$dir/large.back" || bad 'a published file comes back changed'
status 0 "$rdtctl" unpublish weights
kill -TERM "$small"
wait "$small" || bad "the second daemon ended with status $?"

((failures == 0))
