#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl drain refuses new objects and names, lets fetches go on, and returns when a stop would lose nothing: when the last object
# that no keeper has ends. Its time-out says what is left; --undo ends it; other users are refused.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
dir=$(mktemp -d)
trap '{ kill "$daemon" $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"' EXIT
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" "$@"; }

serve "$dir/s" "$dir/log" --state-dir ''
printf '\002\000\000\000\000\000\000\000{}' >"$dir/empty.safetensors"

ctl put -q --detached --id it "$dir/empty.safetensors" >/dev/null || bad "no put"
ctl drain --timeout 300ms 2>"$dir/why"
[[ $? == 4 ]] || bad "a drain with an object left does not time out"
grep -q '0 transfers run, and a stop would lose 1 object: ' "$dir/why" || bad "$(cat "$dir/why")"
ctl drain --timeout 0 --json >"$dir/json"
[[ $? == 4 ]] || bad "a look does not say that work is left"
grep -q '"objects": 1,' "$dir/json" || bad "$(cat "$dir/json")"
ctl put -q --detached "$dir/empty.safetensors" >/dev/null 2>"$dir/why" && bad "a drained daemon takes an object"
grep -q 'BUSY: this node is being drained and takes no new objects' "$dir/why" || bad "$(cat "$dir/why")"
ctl publish it name 2>"$dir/why" && bad "a drained daemon takes a name"
ctl fetch -q it -o "$dir/copy.safetensors" || bad "a drained daemon serves no fetch"
[[ $(ctl status --json) == *'"state": "drained"'* ]] || bad "the state: $(ctl status)"
ctl doctor --json >"$dir/json"
grep -q 'takes no new objects' "$dir/json" || bad "the doctor does not say it"

# It returns when the object ends.
ctl drain --timeout 1m >"$dir/out" &
drain=$!
ctl free it || bad "no free"
wait "$drain" || bad "the drain does not return"
grep -q '^drained: a stop loses nothing; 0 objects survive it' "$dir/out" || bad "$(cat "$dir/out")"
[[ $(ctl drain --undo) == 'the daemon takes new objects again' ]] || bad "no undo"
ctl put -q --detached --id it "$dir/empty.safetensors" >/dev/null || bad "no put after the undo"
[[ $(grep -c 'drains this node' "$dir/log") == 1 ]] || bad "the log: $(cat "$dir/log")"
if [[ $(id -u) == 0 ]]; then
  chmod 755 "$dir"
  setpriv --reuid 12345 --clear-groups "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" drain 2>"$dir/why" && bad "another user drains"
  grep -q 'DENIED: only root' "$dir/why" || bad "$(cat "$dir/why")"
fi
((failures == 0))
