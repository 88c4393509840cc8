#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl log-level shows and changes the log level of a running daemon, and the log says who changed it. Other users and
# unknown levels are refused.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
dir=$(mktemp -d)
trap '{ kill "$daemon"; wait; } 2>/dev/null; rm -rf "$dir"' EXIT
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" "$@"; }

serve "$dir/s" "$dir/log" --state-dir ''

[[ $(ctl log-level) == 'the log level is info' ]] || bad "$(ctl log-level)"
grep -q 'PING' "$dir/log" && bad "messages are logged at info: $(cat "$dir/log")"
[[ $(ctl log-level trace) == 'the log level is trace now; it was info' ]] || bad "no change"
ctl ping -q
grep -q 'trace: PING from client' "$dir/log" || bad "nothing is logged at trace: $(cat "$dir/log")"
[[ $(ctl log-level error --json) == *'"level": "error"'*'"before": "trace"'* ]] || bad "no JSON"
grep -q "info: uid $(id -u) has changed the log level from trace to error" "$dir/log" ||
  bad "the log does not say who: $(tail -n 1 "$dir/log")"
before=$(wc -l <"$dir/log")
ctl ping -q
[[ $(wc -l <"$dir/log") == "$before" ]] || bad "something is logged at error: $(tail -n 1 "$dir/log")"

ctl log-level verbose 2>"$dir/why" && bad "a word that is no level is taken"
grep -q "INVALID: 'verbose' is no log level: expected error, warn, info, debug or trace" "$dir/why" || bad "$(cat "$dir/why")"
if [[ $(id -u) == 0 ]]; then
  chmod 755 "$dir"
  setpriv --reuid 4321 --clear-groups "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" log-level debug 2>"$dir/why" &&
    bad "another user may change it"
  grep -q 'DENIED: only root' "$dir/why" || bad "$(cat "$dir/why")"
fi
[[ $(ctl log-level) == 'the log level is error' ]] || bad "a refused change took place: $(ctl log-level)"

# With standard descriptors that are closed, the daemon logs nowhere and serves.
"$RDT_BUILD_DIR/rdtd" --config= --socket "$dir/closed" --backend-dir "$RDT_BUILD_DIR/backends" --state-dir '' --log-level trace \
  <&- >&- 2>&- &
closed=$!
until_true answers "$dir/closed" "$closed"
for fd in 0 1 2; do
  [[ $(readlink "/proc/$closed/fd/$fd") == /dev/null ]] || bad "descriptor $fd is $(readlink "/proc/$closed/fd/$fd")"
done
for ((i = 0; i < 300; i++)); do echo "ping -q"; done | xargs -L 1 "$RDT_BUILD_DIR/rdtctl" --socket "$dir/closed" ||
  bad "it does not go on"
"$RDT_BUILD_DIR/rdtctl" --socket "$dir/closed" ping <&- >&- 2>&- || bad "rdtctl needs its standard descriptors"
kill "$closed" && wait "$closed" || bad "it ends with $?"

# A standard error that nobody reads does not stop the daemon, and its status counts the lines that are missing.
mkfifo "$dir/fifo"
exec {reader}<>"$dir/fifo"
"$RDT_BUILD_DIR/rdtd" --config= --socket "$dir/full" --backend-dir "$RDT_BUILD_DIR/backends" --state-dir '' --log-level trace \
  </dev/null 2>"$dir/fifo" &
full=$!
until_true answers "$dir/full" "$full"
dropped() { [[ $("$RDT_BUILD_DIR/rdtctl" --socket "$dir/full" status) == *'lines were dropped'* ]]; }
until_true dropped
kill "$full" && wait "$full" || bad "it ends with $?"
exec {reader}<&-
((failures == 0))
