#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A plug-in that crashes the daemon is known to the next one, by the crash itself: the log, rdtctl backends and rdtctl doctor name
# it, until its file is another one. What else ends the daemon is not put down to it.
# variant: release
set -uo pipefail
dir=$(mktemp -d)
chmod 755 "$dir"
pid=
trap '[[ -z $pid ]] || kill -9 "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
failures=0
bad() { echo "FAILED: $*"; failures=$((failures + 1)); }
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" "$@"; }
cp "$RDT_BUILD_DIR/tests/rdt_broken.so" "$dir/rdt_broken.so"
python3 - "$dir/two.safetensors" <<'PY'
import json, struct, sys
head = json.dumps({"t": {"dtype": "U8", "shape": [2 << 20], "data_offsets": [0, 2 << 20]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(head)) + head + bytes(2 << 20))
PY

# spawn FAULT: a daemon whose only plug-in has that fault
spawn() {
  BROKEN=$1 "$RDT_BUILD_DIR/rdtd" --config= --socket "$dir/s" --state-dir "$dir/state" --backend-dir= \
    --backend "$dir/rdt_broken.so" 2>>"$dir/log" &
  pid=$!
}
ready() {
  for ((i = 0; i < 400; i++)); do ctl ping -q --timeout 1s 2>/dev/null && return; sleep 0.05; done
  bad "the daemon does not start: $(cat "$dir/log")"
}
ends_with() { # STATUS
  local status
  wait "$pid"
  status=$?
  pid=
  ((status == $1)) || bad "the daemon ended with $status, not $1: $(tail -5 "$dir/log")"
}
# knows COUNT TEXT: a daemon says that the plug-in has crashed so often
knows() {
  spawn ''
  ready
  ctl backends --json | python3 -c 'import json, sys
rows = json.load(sys.stdin)
rows = rows if isinstance(rows, list) else rows["backends"]
assert all(row.get("crashes", 0) == int(sys.argv[1]) and sys.argv[2] in row.get("last_crash", "") for row in rows), rows' "$@" ||
    bad "rdtctl backends --json does not say '$2' with $1"
  ctl doctor >"$dir/doctor" # its status says that the clock is wrong
  if (($1 > 0)); then
    ctl backends | grep -qE "has crashed the daemon $1 time.*$2" || bad "rdtctl backends: $(ctl backends)"
    grep -qE "^warn +RDT033 .*rdt_broken.so: it has crashed the daemon $1 time.*$2" "$dir/doctor" || bad "doctor: $(cat "$dir/doctor")"
    grep -q "rdt_broken.so: it has crashed the daemon $1 time" "$dir/log" || bad "the log says nothing"
  else
    grep -qE '^ok +RDT033' "$dir/doctor" || bad "doctor: $(cat "$dir/doctor")"
  fi
}
stop() { kill "$pid"; ends_with 0; }

knows 0 ''
stop
spawn crashes_in_an_allocation
ready
ctl put -q "$dir/two.safetensors" --timeout 5s >/dev/null 2>&1
ends_with 139
knows 1 'Segmentation fault'
kill -SEGV "$pid" # by somebody
ends_with 139
knows 1 'Segmentation fault'
stop
spawn crashes_in_open
ends_with 134
knows 2 'Aborted", when it was loaded'
kill -9 "$pid"
ends_with 137
knows 2 'Aborted'
stop
touch "$dir/rdt_broken.so" # another build
knows 0 ''
stop
((failures == 0))
