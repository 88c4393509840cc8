#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How a daemon starts and what it logs: its version first, one line for each client at level debug, and none at info. It
# also starts in a user namespace, as in a container without privileges.
set -euo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
dir=$(mktemp -d)
pids=()
# shellcheck disable=SC2317
cleanup() { { kill "${pids[@]}"; wait; } 2>/dev/null || true; rm -rf "$dir"; }
trap cleanup EXIT
fail() { echo "$*"; exit 1; }
start() { # FLAG ...: a daemon at $dir/s
  rm -f "$dir"/{s,log}
  serve "$dir/s" "$dir/log" "$@"
  pids+=("$daemon")
}
stop() { kill "${pids[-1]}"; wait "${pids[-1]}" || fail "it ends with $?: $(cat "$dir/log")"; unset 'pids[-1]'; }

start --state-dir "$dir/state"
version=$("$RDT_BUILD_DIR/rdtd" --version)
grep -qF "info: $version: node " "$dir/log" || fail "the log does not begin with \"$version\": $(cat "$dir/log")"
for ((i = 0; i < 5; i++)); do "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" status >/dev/null; done
! grep -q 'client ' "$dir/log" || fail "clients are logged at info: $(cat "$dir/log")"
stop

start --state-dir "$dir/state" --log-level debug
for ((i = 0; i < 5; i++)); do "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" status >/dev/null; done
stop
lines=$(grep -c 'client [0-9]* (rdtctl, pid' "$dir/log") || true
clients=$(grep -oE 'client [0-9]+ \(rdtctl' "$dir/log" | sort -u | wc -l)
((clients >= 5 && lines == clients)) || fail "$lines lines for $clients clients: $(cat "$dir/log")"

if ! unshare --user --map-root-user true 2>/dev/null; then
  echo "not checked: a daemon in a user namespace, which this machine does not allow"
  exit 0
fi
head='{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
printf -v length '\\x%02x' ${#head}
printf '%b%s%s' "$length\0\0\0\0\0\0\0" "$head" abcd >"$dir/in.safetensors"
in_daemon=(unshare --user --map-root-user --mount --ipc --net)
start --state-dir "$dir/inner"
"$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" put -q "$dir/in.safetensors" --id x --detached >/dev/null ||
  fail "no put into a daemon in a user namespace: $(cat "$dir/log")"
"$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" fetch -q x -o "$dir/out.safetensors"
[[ $(tail -c 4 "$dir/out.safetensors") == abcd ]] || fail "other bytes came"
stop
