#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl top: a table once where the output is no terminal, and on a terminal a screen that keys sort and end.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
"$RDT_BUILD_DIR/rdtctl" help | grep -q '^  top ' || { echo "SKIP: rdtctl was built without ncurses"; exit 77; }
dir=$(mktemp -d)
trap '{ kill "$daemon" "$asks"; wait; } 2>/dev/null; rm -rf "$dir"' EXIT
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" "$@"; }
python=${PYTHON:-/usr/bin/python3}

serve "$dir/s" "$dir/log" --state-dir ''
"$python" -c 'import struct, sys
h = b"{\"w\":{\"dtype\":\"U8\",\"shape\":[1000000],\"data_offsets\":[0,1000000]}}"
open(sys.argv[1], "wb").write(struct.pack("<Q", len(h)) + h + bytes(1000000))' "$dir/w.safetensors"
ctl put -q "$dir/w.safetensors" --id w --hold >/dev/null &
ctl wait w -q --timeout 1m || bad "no put"

# A client that asks without end.
"$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" ping -q -c 60000 -i 5ms &
asks=$!
ctl top --interval 500ms >"$dir/out" || bad "top: $?"
grep -q '^rdtd [0-9.]*, serving: [0-9]* clients*, 1 object, ' "$dir/out" || bad "no heading: $(cat "$dir/out")"
grep -Eq '^ *[0-9]+ +rdtctl .* pid '"$asks"', uid' "$dir/out" || bad "no client: $(cat "$dir/out")"
grep -q '^no transfers$' "$dir/out" || bad "no place for transfers: $(cat "$dir/out")"
grep -q '^no links to other nodes$' "$dir/out" || bad "no place for links: $(cat "$dir/out")"
ctl top --interval 500ms --json >"$dir/json" || bad "top --json: $?"
"$python" - "$dir/json" <<'P' || bad "the rates are wrong: $(cat "$dir/json")"
import json, sys
clients = json.load(open(sys.argv[1]))["clients"]
assert max(c["requests_per_s"] for c in clients) > 1 and sum(c["out_bytes"] == 1000000 for c in clients) == 1
P
ctl top --interval 1ms 2>"$dir/why"
[[ $? == 2 ]] || bad "an interval that is too short"

if ! "$python" -c 'import pty; pty.openpty()' 2>/dev/null; then
  ((failures == 0)) || exit 1
  echo "SKIP: there is no pseudo-terminal for the screen: /dev/pts is not mounted"
  exit 77
fi
# A pseudo-terminal: the screen appears, a key changes the order, q ends it with status 0 and gives the terminal back.
cat >"$dir/screen.py" <<'P'
import fcntl, os, pty, select, struct, sys, termios, time
rdtctl, socket = sys.argv[1:]
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))  # before the first drawing
    os.execv(rdtctl, [rdtctl, "--socket", socket, "top", "--interval", "100ms"])
seen = b""
def until(what):
    global seen
    deadline = time.monotonic() + 60
    while what not in seen:
        ready = select.select([fd], [], [], max(0, deadline - time.monotonic()))[0]
        assert ready, (what, seen)
        try:
            data = os.read(fd, 65536)
        except OSError:
            data = b""
        assert data, (what, seen)
        seen += data
until(b"sorted by rate")
until(b"CLIENT")
os.write(fd, b"n")
until(b"name")
os.write(fd, b"t")
until(b"otal; ")  # curses writes only what has changed
os.write(fd, b"q")
until(b"\x1b[?1049l")  # the screen from before
status = os.waitpid(pid, 0)[1]
assert os.waitstatus_to_exitcode(status) == 0, status
P
timeout 120 "$python" "$dir/screen.py" "$RDT_BUILD_DIR/rdtctl" "$dir/s" || bad "on a terminal: $?"

# The daemon goes while top runs: an error, and the status of a lost daemon.
cat >"$dir/lost.py" <<'P'
import os, pty, signal, sys
rdtctl, socket, daemon = sys.argv[1:]
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execv(rdtctl, [rdtctl, "--socket", socket, "top", "--interval", "100ms"])
seen = b""
while b"sorted by" not in seen:
    seen += os.read(fd, 65536)
os.kill(int(daemon), signal.SIGKILL)
try:
    while True:
        seen += os.read(fd, 65536)
except OSError:
    pass
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert code == 3 and b"DISCONNECTED" in seen, (code, seen)
P
timeout 120 "$python" "$dir/lost.py" "$RDT_BUILD_DIR/rdtctl" "$dir/s" "$daemon" || bad "without the daemon: $?"
((failures == 0))
