#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl doctor finds faults of an installation. For each it prints an id, a sentence and a remedy, and its exit status
# tells how severe they are. It finds nothing in a correct installation. rdtctl(1) lists every id.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
. tests/support/daemon.sh
dir=$(mktemp -d)
pids=()
# shellcheck disable=SC2317
cleanup() { { kill -CONT "${pids[@]}"; kill "${pids[@]}"; wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" "$@"; }

# start FLAG...: a daemon at $dir/s, the last of $pids
start() {
  serve "$dir/s" "$dir/log" --state-dir "$dir/state" "$@"
  pids+=("$daemon")
}
stop() { kill "${pids[-1]}"; wait "${pids[-1]}" || bad "the daemon ended with $?"; unset 'pids[-1]'; }

# field ID KEY: of the findings of that check in $dir/json
field() {
  "${PYTHON:-/usr/bin/python3}" -c 'import json, sys
for c in json.load(open(sys.argv[1]))["checks"]:
    if c["id"] == sys.argv[2]: print(c[sys.argv[3]])' "$dir/json" "$1" "$2"
}
# expect STATUS ID PATTERN [OPTION...]: that check has that status and says that, with a remedy unless all is well
expect() {
  local status=$1 id=$2 pattern=$3 found
  shift 3
  ctl doctor --json "$@" >"$dir/json"
  found=$?
  grep -qx "$status" <<<"$(field "$id" status)" || bad "$id is $(field "$id" status), not $status: $(field "$id" sentence)"
  grep -qE -- "$pattern" <<<"$(field "$id" sentence)" || bad "$id does not say '$pattern': $(field "$id" sentence)"
  [[ $status == ok ]] || grep -qE '\.$' <<<"$(field "$id" remedy)" || bad "$id names no remedy: $(cat "$dir/json")"
  case $status in
  fail) ((found == 2)) || bad "exit status $found after a failure" ;;
  warn) ((found == 1 || found == 2)) || bad "exit status $found after a warning" ;;
  esac
}

# ---- no daemon ----

expect fail RDT001 'There is no socket at .*/s: No such file'
grep -qx skip <<<"$(field RDT009 status)" || bad "RDT009 without a daemon: $(cat "$dir/json")"
touch "$dir/s"
expect fail RDT001 's is not a socket'
rm "$dir/s"

# ---- a sound installation ----

# sound WHAT: the doctor finds nothing wrong, and lists the checks of rdtctl(1)
sound() {
  ctl doctor --json >"$dir/json"
  local code=$?
  "${PYTHON:-/usr/bin/python3}" - "$dir/json" "$code" client/ctl/rdtctl.1.scd <<'PY' || bad "$1: $(cat "$dir/json")"
import json, re, sys
report, code = json.load(open(sys.argv[1])), int(sys.argv[2])
checks = report["checks"]
assert sorted(checks, key=lambda c: c["id"]) == checks, "not in order"
found = [c for c in checks if c["status"] != "ok"]
assert all(c["id"] == "RDT005" for c in found), found # the clock of the machine is not the installation's fault
assert code == {"ok": 0, "warn": 1, "skip": 3}[report["status"]], code
assert all(re.fullmatch(r"RDT\d{3}", c["id"]) and c["sentence"].endswith(".") for c in checks), checks
assert all(bool(c["remedy"]) == (c["status"] in ("warn", "fail")) for c in checks), checks
page = re.findall(r"\*(RDT\d{3}) ([a-z-]+)\*", open(sys.argv[3]).read())
assert sorted(page) == sorted({(c["id"], c["name"]) for c in checks}), (page, "rdtctl(1) lists other checks")
PY
}
start
sound "a sound installation"
ctl doctor >"$dir/text"
grep -qE '^ok +RDT010 open-files +The daemon may open' "$dir/text" || bad "for people: $(cat "$dir/text")"
ctl doctor -q >"$dir/text"
grep -q '^ok' "$dir/text" && bad "--quiet shows what is well"
chmod 777 "$dir"
expect fail RDT002 'Other users may write to '
chmod 755 "$dir"
kill -STOP "${pids[-1]}"
expect fail RDT001 'does not answer' --timeout 300ms
kill -CONT "${pids[-1]}"
mv "$dir/state" "$dir/state2"
touch "$dir/state"
expect fail RDT020 'cannot use its state_dir'
rm "$dir/state"
mv "$dir/state2" "$dir/state"
expect ok RDT020 "uuid is in $dir/state"
stop

# ---- files that do not answer ----

# A pipe without a writer stands for a file system that has stopped: who opens it waits.
start
cp "$dir/state/node_uuid" "$dir/uuid"
rm "$dir/state/node_uuid"
mkfifo "$dir/state/node_uuid"
expect fail RDT020 '^state_dir has not answered for [0-9]+ s\.$'
[[ $(field RDT019 status) == skip && $(field RDT070 status) == ok ]] || bad "other checks: $(cat "$dir/json")"
ctl ping >/dev/null || bad 'the daemon waits for a file'
for i in 1 2 3; do ctl doctor --json >"$dir/json.$i" & many[i]=$!; done
wait "${many[@]:1}"
ctl doctor --json >"$dir/json"
grep -qx 'state_dir was not looked at, because a file system does not answer.' <<<"$(field RDT020 sentence)" ||
  bad "more than four looks: $(field RDT020 sentence)"
cat "$dir/uuid" >"$dir/state/node_uuid" # answers one of them, and its reader sees the end of the file
for ((i = 0; i < 400; i++)); do # the others have opened it meanwhile, or find a file
  rm -f "$dir/state/node_uuid"
  cp "$dir/uuid" "$dir/state/node_uuid"
  ctl doctor --json >"$dir/json"
  [[ $(field RDT020 status) == ok ]] && break || sleep 0.05
done
expect ok RDT020 'uuid is in'
stop

# ---- limits ----

in_daemon=(prlimit --nofile=600)
serve "$dir/s" "$dir/log" --state-dir '' --owner-max-objects 4
in_daemon=()
pids+=("$daemon")
expect warn RDT010 'may open 600 files, but max_clients'
expect ok RDT016 'Nobody'
printf '\002\000\000\000\000\000\000\000{}' >"$dir/empty.safetensors"
for i in 1 2 3 4; do ctl put -q "$dir/empty.safetensors" --id "o$i" --detached >/dev/null || bad "no put"; done
expect warn RDT016 "User $(id -u) uses 4 of 4 objects"
if [[ $(id -u) == 0 ]]; then
  setpriv --reuid 4321 --clear-groups "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" doctor --json >"$dir/json"
  grep -q Nobody <<<"$(field RDT016 sentence)" || bad "another user sees: $(field RDT016 sentence)"
  # Users cannot keep the daemon busy with it.
  for i in 1 2 3 4 5 6 7 8; do
    setpriv --reuid 4321 --clear-groups "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" doctor >"$dir/many.$i" &
    many[i]=$!
  done
  wait "${many[@]}"
  grep -q '^skip  RDT009 .* less than a second ago' "$dir"/many.* ||
    bad "a user may run the doctor without a pause: $(grep -h RDT009 "$dir"/many.*)"
fi
stop

# ---- the keeper ----

"$RDT_BUILD_DIR/rdtd-keeper" --socket "$dir/keeper" 2>>"$dir/log" &
keeper=$!
for ((i = 0; i < 400; i++)); do [[ -S $dir/keeper ]] && break || sleep 0.05; done
start --keeper "$dir/keeper"
ctl put -q "$dir/empty.safetensors" --id kept --detached >/dev/null
expect ok RDT030 '1 object, 0 names and 1 session would survive'
kill -9 "$keeper"
wait "$keeper" 2>/dev/null
for ((i = 0; i < 400; i++)); do [[ $(ctl status --json) == *'"keeper_up": true'* ]] || break; sleep 0.05; done
expect fail RDT030 'is not connected, so a crash'
stop

# ---- other nodes ----

(umask 077 && head -c 32 /dev/urandom | base64 >"$dir/key")
port=$("${PYTHON:-/usr/bin/python3}" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
echo "gone 127.0.0.1:$port" >"$dir/nodes"
# Transports that trusted_network would allow are off by default, which is no fault.
start --key-file "$dir/key" --listen 127.0.0.1:0
sound "a node whose network is not trusted"
while read -r name; do
  [[ $(field RDT024 sentence) == *"Transport $name is off: "* ]] || bad "RDT024 lacks $name: $(field RDT024 sentence)"
done < <(ctl backends --json | "${PYTHON:-/usr/bin/python3}" -c 'import json, sys
for b in json.load(sys.stdin)["backends"]:
    if "trusted_network" in b.get("why_not", ""): print(b["name"])')
stop
start --key-file "$dir/key" --listen 127.0.0.1:0 --nodes "$dir/nodes" --set stream.enabled=no
expect warn RDT024 'Transport stream is loaded, but cannot be used: it is switched off'
stop
start --key-file "$dir/key" --listen 127.0.0.1:0 --nodes "$dir/nodes"
for ((i = 0; i < 400; i++)); do [[ $(ctl peers --json) == *'"state": "backoff"'* ]] && break || sleep 0.05; done
expect ok RDT021 'listens at 127.0.0.1:'
for ((i = 0; i < 100; i++)); do # the daemon dials again and again
  ctl doctor --json >"$dir/json"
  [[ $(field RDT022 status) == warn ]] && break || sleep 0.05
done
[[ $(field RDT022 sentence) == "Node gone at 127.0.0.1:$port cannot be reached: "* ]] || bad "$(field RDT022 sentence)"
# Many findings of one check leave room for those of the others.
for ((i = 1; i <= 100; i++)); do echo "gone$i 127.0.0.$i:$port"; done >"$dir/nodes"
for ((i = 0; i < 400; i++)); do # the daemon reads the file again, and dials
  (($(ctl peers --json | grep -c '"state": "backoff"') >= 40)) && break || sleep 0.05
done
ctl doctor --json >"$dir/json"
(($? == 1)) || bad "unreachable nodes are no warning"
(($(field RDT022 id | wc -l) == 33)) || bad "not 32 findings and their end: $(field RDT022 sentence)"
field RDT022 sentence | tail -n 1 | grep -qE '^This check has [0-9]+ more findings, which are not shown\.$' ||
  bad "RDT022 does not say how many findings are left out: $(field RDT022 sentence | tail -n 1)"
[[ $(field RDT022 status | tail -n 1) == warn && $(field RDT072 status) == ok ]] || bad "the last rows: $(tail -n 30 "$dir/json")"
# A node whose library of a transport has another version.
if [[ -f $RDT_BUILD_DIR/tests/rdt_loopback.so ]]; then
  stop
  start --key-file "$dir/key" --listen 127.0.0.1:0 --backend "$RDT_BUILD_DIR/tests/rdt_loopback.so"
  address=$(ctl status --json | sed -n 's/^ *"address": "\(.*\)",/\1/p')
  echo "near $address" >"$dir/nodes2"
  serve "$dir/s2" "$dir/log" --state-dir '' --key-file "$dir/key" --nodes "$dir/nodes2" \
    --backend "$RDT_BUILD_DIR/tests/rdt_loopback.so" --set loopback.version=2.0
  pids=("$daemon" "${pids[@]}")
  for ((i = 0; i < 400; i++)); do # until the offers have come
    ctl doctor --json >"$dir/json"
    [[ $(field RDT027 status) == warn ]] && break || sleep 0.05
  done
  [[ $(field RDT027 sentence) == *'moves nothing between them: loopback 1.0 here, 2.0 there.' ]] || bad "$(field RDT027 sentence)"
  kill "${pids[0]}"
  wait "${pids[0]}" || bad "the other node ended with $?"
  pids=("${pids[@]:1}")
fi
chmod 644 "$dir/key"
expect fail RDT021 'could not be started again: '
stop
((failures == 0))
