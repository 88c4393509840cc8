#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# After an upgrade, a daemon that still runs may start the rdtd-etcd of the newer version. It is told that this one keeps no names
# in etcd; and fields that it does not know are ignored, and METRICS answers.
set -uo pipefail
dir=$(mktemp -d)
# shellcheck disable=SC2317
cleanup() { { kill $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
if [[ -x $RDT_BUILD_DIR/rdtd-etcd ]]; then
  timeout 30 /usr/bin/python3 - "$RDT_BUILD_DIR/rdtd-etcd" <<'PY' || { echo "FAILED: nobody is told that names are not in etcd"; exit 1; }
import os, socket, struct, subprocess, sys
here, there = socket.socketpair()
field = lambda number, data: bytes([number << 3 | 2, len(data)]) + data
config = field(1, b"http://127.0.0.1:1") + field(2, b"/rdtd") + field(9, 16 * b"n") + field(10, 16 * b"b")
config += b"\x40\x80\xa8\xd6\xb9\x07" + b"\x60\x01"  # ttl_ns = 1 s, names
program = subprocess.Popen([sys.argv[1]], pass_fds=[3], preexec_fn=lambda: os.dup2(there.fileno(), 3))
there.close()
here.sendall(struct.pack("<IHBBQ", len(config), 1, 0, 0, 0) + config)
said = b""
while b"keeps no names any more (names = etcd): restart rdtd" not in said:
    some = here.recv(65536)
    assert some, said
    said += some
here.shutdown(socket.SHUT_WR)
while here.recv(65536):  # a socket that is closed with unread bytes is a failure for the other end
    pass
assert program.wait() == 0
PY
fi
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" "$@"; }
mkdir "$dir/bin"
cp "$RDT_BUILD_DIR/rdtd" "$dir/bin/" # a daemon starts the rdtd-etcd of its own folder
cat >"$dir/bin/rdtd-etcd" <<'PY'
#!/usr/bin/python3
import socket, struct
sock = socket.socket(fileno=3)
sock.setblocking(True)
unknown = b"\xa2\x06\x40" + 64 * b"n"  # field 100
info = b"\x08\x01" + b"\x20\x07" + unknown  # up, requests = 7
state = b"\x0a" + bytes([len(info)]) + info
sock.sendall(struct.pack("<IHBBQ", len(state), 2, 0, 0, 0) + state)
while sock.recv(65536):
    pass
PY
chmod +x "$dir/bin/rdtd-etcd"
(umask 077 && head -c 32 /dev/urandom | base64 >"$dir/key")
printf '[network]\nlisten = 127.0.0.1:0\nkey_file = %s\netcd_endpoints = http://127.0.0.1:1\n' "$dir/key" >"$dir/conf"
"$dir/bin/rdtd" --config "$dir/conf" --socket "$dir/s" --state-dir "$dir/state" --backend-dir "$RDT_BUILD_DIR/backends" \
  2>"$dir/log" &
daemon=$!
for ((i = 0; i < 400; i++)); do
  kill -0 $daemon 2>/dev/null || break
  metrics=$(ctl metrics 2>&1)
  [[ $metrics == *$'\nrdtd_directory_etcd_requests_total 7'* ]] && exit 0 || sleep 0.05
done
echo "FAILED: METRICS does not answer with the numbers of a newer rdtd-etcd: ${metrics:0:300} $(tail -n 40 "$dir/log")"
exit 1
