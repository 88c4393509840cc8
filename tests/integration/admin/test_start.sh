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

# Memory is a file, too, and the kernel ends a process whose file exceeds a limit: here the request fails, and names the limit.
small_files() { (ulimit -f 1024; exec "$@"); }
in_daemon=(bash -c 'ulimit -f 1024; exec "$@"' --)
start --state-dir "$dir/files"
grep -q 'warn: files of this process may have at most 1048576 bytes (ulimit -f, LimitFSIZE=)' "$dir/log" ||
  fail "the log does not name the limit of the size of files: $(cat "$dir/log")"
{ printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[8000000],"data_offsets":[0,8000000]}}'
  head -c 8000000 /dev/zero; } >"$dir/a.safetensors"
out=$("$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" put -q "$dir/a.safetensors" --detached 2>&1) && fail "a put above the limit works"
grep -q 'at most 1048576 bytes (ulimit -f, LimitFSIZE=)' <<<"$out" || fail "the error does not name the limit: $out"
{ "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" doctor || true; } 2>&1 | grep -q 'No file of the daemon may have more than 1048576 bytes' ||
  fail "the doctor does not name the limit"
stop
"$RDT_BUILD_DIR/rdtd-keeper" --socket "$dir/k" 2>"$dir/klog" &
pids+=($!)
until_true test -S "$dir/k"
small_files "$RDT_BUILD_DIR/rdtd" --config= --socket "$dir/s" --backend-dir "$RDT_BUILD_DIR/backends" --state-dir "$dir/files" \
  --keeper "$dir/k" 2>"$dir/log" && fail "a daemon whose journal exceeds the limit starts"
grep -q 'creating the journal: File too large; .*LimitFSIZE=' "$dir/log" || fail "it does not say why: $(cat "$dir/log")"
stop
in_daemon=()

# A socket that the service manager has made is not what `socket` and `socket_mode` say: the daemon refuses it.
if command -v systemd-socket-activate >/dev/null; then
  # It passes no environment on, and the sanitizers need theirs (run-tests).
  activate=(systemd-socket-activate)
  for variable in $(compgen -e | grep -E '^(UCX|[A-Z]+SAN)_'); do activate+=(-E "$variable"); done
  passed() { # SENTENCE FLAG ...: the daemon ends with it, as soon as somebody connects
    timeout 60 "${activate[@]}" -l "$dir/passed" "$RDT_BUILD_DIR/rdtd" --config= --backend-dir "$RDT_BUILD_DIR/backends" \
      --state-dir '' "${@:2}" 2>"$dir/log" &
    pids+=("$!")
    until_true test -S "$dir/passed"
    "$RDT_BUILD_DIR/rdtctl" --socket "$dir/passed" ping --timeout 20s >/dev/null 2>&1 || true
    until_true grep -qF "$1" "$dir/log" || fail "no \"$1\" in $(cat "$dir/log")"
    rm -f "$dir/passed"
    wait "${pids[-1]}" && fail "it goes on: $(cat "$dir/log")"
    unset 'pids[-1]'
  }
  passed "socket = $dir/other, but the service manager listens at $dir/passed: set ListenStream= of rdtd.socket" --socket "$dir/other"
  passed "socket_mode = 0640, but the service manager has made $dir/passed with 0" --socket-mode 0640
  # The doctor says so before the next start.
  printf '[daemon]\nstate_dir =\n' >"$dir/conf"
  "${activate[@]}" -l "$dir/passed" "$RDT_BUILD_DIR/rdtd" --config "$dir/conf" --backend-dir "$RDT_BUILD_DIR/backends" 2>"$dir/log" &
  pids+=("$!")
  until_true "$RDT_BUILD_DIR/rdtctl" --socket "$dir/passed" ping --timeout 20s
  echo 'socket_mode = 0660' >>"$dir/conf"
  { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/passed" doctor || true; } >"$dir/out" 2>&1
  grep -q 'socket_mode = 0660 is new in the configuration, but the service manager makes the socket' "$dir/out" ||
    fail "the doctor does not say it: $(cat "$dir/out")"
  stop
else
  echo "not checked: sockets of the service manager, without systemd-socket-activate"
fi

# A start that fails says why, and ends also if nobody reads that.
mkfifo "$dir/unread"
exec 3<>"$dir/unread"
dd if=/dev/zero of="$dir/unread" bs=4096 oflag=nonblock 2>/dev/null || true
refused() { # STATUS COMMAND ...
  local got=0
  timeout 60 "${@:2}" 2>"$dir/unread" || got=$?
  [[ $got == "$1" ]] || fail "${*:2}: $got with a full pipe as standard error"
}
{ echo '[limits]' && printf 'wrong%d = 1\n' {1..20}; } >"$dir/faults"
refused 2 "$RDT_BUILD_DIR/rdtd" --config "$dir/faults" --memory-limit many
refused 2 "$RDT_BUILD_DIR/rdtd-keeper" --socket "$dir/no/such"
refused 2 "$RDT_BUILD_DIR/rdtd-keeper" --unknown
exec 3>&-
"$RDT_BUILD_DIR/rdtd" --config "$dir/faults" 2>"$dir/out" && fail "wrong keys are accepted"
[[ $(grep -c '^rdtd: .*wrong.*: no such key' "$dir/out") == 21 ]] || fail "not every fault is named: $(cat "$dir/out")"
printf '[stream]\nports = some\ndead_after = 0\nthreads = 2\nconnections = many\nprots = 7200\n[host]\nhuge_pages = perhaps\n[netwrok]\nlisten = x\n' >"$dir/faults"
"$RDT_BUILD_DIR/rdtd" --config "$dir/faults" --backend-dir "$RDT_BUILD_DIR/backends" --check-config 2>"$dir/out" &&
  fail "wrong values of backends are accepted"
for fault in 'ports = some: expected a port' 'dead_after = 0: expected a number' 'connections = many: expected a number' \
             'huge_pages = perhaps: expected no, try or require' 'prots: the backend has no such key; did you mean ports' \
             'neither the daemon nor a loaded backend has a section of this name; did you mean network' \
             '6 faults, the first of them'; do
  [[ $(grep -c "$fault" "$dir/out") != 0 ]] || fail "not every wrong value of a backend is named: $(cat "$dir/out")"
done
"$RDT_BUILD_DIR/rdtd-keeper" --unknown 2>"$dir/out" && fail "an unknown option is accepted"
grep -q '^rdtd-keeper: --unknown ' "$dir/out" || fail "the keeper does not name the option: $(cat "$dir/out")"

# A log whose reader has ended ends neither the daemon nor the keeper, which would take all kept memory with it. Signals that
# whoever starts them blocks or ignores still have their effect.
exec 3<>"$dir/unread" 4>"$dir/unread" 3>&-
"$RDT_BUILD_DIR/rdtd-keeper" --socket "$dir/k" 2>&4 &
keeper=$!
pids+=("$keeper")
until_true test -S "$dir/k"
env --block-signal=TERM "$RDT_BUILD_DIR/rdtd" --config= --socket "$dir/s" --backend-dir "$RDT_BUILD_DIR/backends" \
  --state-dir "$dir/mute" --keeper "$dir/k" --log-level trace 2>&4 &
pids+=($!)
until_true answers "$dir/s" $!
"$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" status | grep -q '^keeper  *up' || fail "the keeper or the daemon does not serve"
stop
kill -0 "$keeper" || fail "the keeper has ended"
stop
exec 4>&-
timeout 60 env --ignore-signal=CHLD "$RDT_BUILD_DIR/rdtd-keeper" --socket "$dir/k" -- true 2>/dev/null ||
  fail "the keeper does not notice the end of its command: $?"

# An address that no interface has yet, as at boot: the node's own clients are served.
(umask 077; head -c 32 /dev/urandom | base64 >"$dir/key")
start --state-dir "$dir/away" --listen 192.0.2.77:0 --key-file "$dir/key"
grep -q 'warn: listen = 192.0.2.77:0: no interface has this address' "$dir/log" || fail "the log: $(cat "$dir/log")"
{ "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" doctor || true; } 2>&1 | grep -q 'No interface has the address of listen = 192.0.2.77:0' ||
  fail "the doctor does not say that no interface has the address"
"$RDT_BUILD_DIR/rdtd" --config= --backend-dir "$RDT_BUILD_DIR/backends" --state-dir "$dir/check" --check-config \
  --listen 192.0.2.77:0 --key-file "$dir/key" >/dev/null || fail "--check-config refuses an address that may come"
stop

# The host's name leads to the loopback interface, as in Debian's /etc/hosts, and refs carry it.
if unshare --net --uts --mount true 2>/dev/null; then
  printf '127.0.0.1 localhost\n127.0.1.1 host77\n' >"$dir/hosts"
  in_daemon=(unshare --net --uts --mount sh -c "ip link set lo up; hostname host77; mount --bind $dir/hosts /etc/hosts; exec \"\$@\"" --)
  start --state-dir "$dir/name" --key-file "$dir/key" --listen 0.0.0.0:7171
  grep -q 'warn: refs carry host77:7171, which leads to 127.0.1.1 in /etc/hosts: .*set advertise' "$dir/log" ||
    fail "the log does not say that the name leads to loopback: $(cat "$dir/log")"
  { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" doctor || true; } 2>&1 | grep -q 'host77:7171, which this machine itself leads to 127.0.1.1' ||
    fail "the doctor does not say that the name leads to loopback"
  stop
  start --state-dir "$dir/name" --key-file "$dir/key" --listen 0.0.0.0:7171 --advertise 192.0.2.1:7171
  ! grep -q 'warn: refs carry' "$dir/log" || fail "the log warns although advertise is set: $(cat "$dir/log")"
  stop
  in_daemon=()
fi

# A network that comes after the daemon: its transports start then.
if unshare --net true 2>/dev/null; then
  in_daemon=(unshare --net sh -c 'ip link set lo up; exec "$@"' --)
  has_stream() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" backend list | grep -q '^stream .* yes *$'; }
  for late in '--interfaces rdt0 --listen 0.0.0.0:0' '--listen 10.77.0.1:0'; do
    read -ra flags <<<"$late"
    start --state-dir "$dir/late" --key-file "$dir/key" "${flags[@]}"
    grep -qE 'warn: (interfaces: this machine has no network interface "rdt0"|listen = 10.77.0.1:0: no interface has)' "$dir/log" ||
      fail "the log does not say what is missing: $(cat "$dir/log")"
    has_stream && fail "$late: stream is available without a network"
    nsenter -t "$daemon" -n sh -c 'ip link add rdt0 type veth peer name rdt1; ip addr add 10.77.0.1/24 dev rdt0; ip link set rdt1 up
      ip link set rdt0 up'
    until_true has_stream
    stop
  done
  in_daemon=()
fi

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
