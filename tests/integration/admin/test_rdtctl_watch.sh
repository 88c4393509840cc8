#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl watch prints one line for each event, as text and as JSON, and ends in each of the documented ways.
set -uo pipefail
. "$(dirname "$0")/rdtctl.sh"
has() { grep -qsE -- "$2" "$dir/$1"; }
ends_with() { # STATUS: the watcher
  local got
  until_true eval '! kill -0 "$watcher" 2>/dev/null' || { bad 'the watcher does not end'; return; }
  wait "$watcher"
  got=$?
  [[ $got == "$1" ]] || bad "the watcher ended with status $got, expected $1: $(cat "$dir/events" "$dir/err")"
}
watch() { # ARGUMENTS ...: sets watcher
  rm -f "$dir/events" "$dir/err"
  "$rdtctl" watch "$@" >"$dir/events" 2>"$dir/err" &
  watcher=$!
  pids+=("$watcher")
  until_true has err '^watching$' || bad "watch $*: $(cat "$dir/err")"
}

serve "$RDT_SOCKET" "$dir/log" --state-dir "$dir"
pids+=("$daemon")
header='{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
printf -v length '\\x%02x' ${#header}
printf '%b%s%s' "$length\0\0\0\0\0\0\0" "$header" abcd >"$dir/in.safetensors"

watch --timeout 1m
"$rdtctl" put -q "$dir/in.safetensors" --id o --publish weights >"$dir/ref"
until_true has events 'object freed o: live' || bad "no object: $(cat "$dir/events")"
has events '^[0-9:]{8}\.[0-9]{3} client connected [0-9]+: rdtctl, pid' || bad 'no client'
has events 'region new [0-9]+: ' || bad 'no region'
has events 'object put o: live, 4 B, held [0-9]+, uid' || bad 'no put'
has events 'name published weights: version 1 is o, 4 B, uid' || bad 'no name'
kill -INT "$watcher"
ends_with 0

watch names --count 1
"$rdtctl" unpublish -q weights
ends_with 0
has events 'name unpublished weights: version 1' || bad "watch names says $(cat "$dir/events")"
(($(wc -l <"$dir/events") == 1)) || bad '--count 1 printed more'

"$rdtctl" watch objects --json -q --count 3 >"$dir/events" &
watcher=$!
pids+=("$watcher")
fetched() { "$rdtctl" wait nobody --timeout 50ms 2>/dev/null; ! kill -0 "$watcher" 2>/dev/null; } # awaited, and no more; again
until_true fetched || bad "no JSON: $(cat "$dir/events")"
ends_with 0
has events '^\{"sequence":[12],"lost":0,"what":"awaited","kind":"objects","object":\{.*"state":"awaited".*\}\}$' ||
  bad "the JSON is $(cat "$dir/events")"

"$rdtctl" watch clients --json -q --count 1 >"$dir/events" & # "kind" is the word of the command
watcher=$!
pids+=("$watcher")
pinged() { "$rdtctl" ping -q; ! kill -0 "$watcher" 2>/dev/null; }
until_true pinged || bad "no JSON: $(cat "$dir/events")"
ends_with 0
has events '^\{"sequence":1,"lost":0,"what":"[a-z]+","kind":"clients","client":\{' || bad "the JSON is $(cat "$dir/events")"

"$rdtctl" watch peers --timeout 50ms >"$dir/events" 2>&1 || bad 'a time-out without --count is no failure'
"$rdtctl" watch peers --count 1 --timeout 50ms >"$dir/events" 2>&1
[[ $? == 4 ]] || bad 'a time-out before --count is one'
has events 'TIMED_OUT: 0 of 1 events came' || bad "it says $(cat "$dir/events")"

watch backends --count 2 # loaded, and about to be unloaded
"$rdtctl" backend load "$RDT_BUILD_DIR/tests/rdt_loopback.so" lose_every=0 >"$dir/out" || bad 'backend load'
has out '^transport loopback is loaded$' || bad "backend load says $(cat "$dir/out")"
"$rdtctl" backend list | grep -q '^loopback .* yes$' || bad "backend list: $("$rdtctl" backend list)"
"$rdtctl" backend load "$RDT_BUILD_DIR/tests/rdt_loopback.so" 2>"$dir/out"
[[ $? == 1 ]] && has out 'EXISTS: .* is taken by .*: loopback$' || bad "loaded twice: $(cat "$dir/out")"
"$rdtctl" backend unload loopback | grep -q '^loopback is unloaded$' || bad 'backend unload'
"$rdtctl" backend unload host 2>/dev/null && bad 'host is unloaded'
"$rdtctl" backend load 2>/dev/null
[[ $? == 2 ]] || bad 'load without a path is wrong usage'
"$rdtctl" backend load ./nonexistent.so 2>"$dir/out"
[[ $? == 1 ]] && has out 'nonexistent.so: No such file or directory$' || bad "nothing loaded: $(cat "$dir/out")"
ends_with 0
has events 'backend loaded loopback: transport$' || bad "watch backends says $(cat "$dir/events")"
has events 'backend unavailable loopback: transport, it is being unloaded$' || bad "watch backends says $(cat "$dir/events")"

watch
kill -TERM "${pids[0]}"
wait "${pids[0]}" || bad "the daemon ended with status $?"
ends_with 3

((failures == 0))
