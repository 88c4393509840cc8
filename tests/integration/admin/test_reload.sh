#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl reload and SIGHUP change limits, the log level, the nodes and the key of a running daemon. Keys that cannot change
# are named, and a configuration with an error changes nothing. Links stay up when the key changes.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
dir=$(mktemp -d)
declare -A pid
# shellcheck disable=SC2317
cleanup() { { kill "${pid[@]}" $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1/s" "${@:2}"; }
# start NODE: with $dir/NODE/conf and $dir/NODE/key
start() {
  serve "$dir/$1/s" "$dir/$1/log" --config "$dir/$1/conf" --state-dir ''
  pid[$1]=$daemon
}
stop() { kill "${pid[$1]}"; wait "${pid[$1]}" || bad "$1 ended with $?"; unset "pid[$1]"; }
says() { grep -qF -- "$2" "$1" || bad "$1 does not say '$2': $(cat "$1")"; }

# ---- one node: limits, the log level, faults ----

mkdir "$dir/a"
printf '[limits]\nowner_max_objects = 1\n' >"$dir/a/conf"
start a
[[ $(ctl a reload) == 'the configuration was reloaded; it has not changed' ]] || bad "$(ctl a reload)"
printf '\002\000\000\000\000\000\000\000{}' >"$dir/empty.safetensors"
ctl a put -q "$dir/empty.safetensors" --id one --detached >/dev/null || bad "no put"
ctl a put -q "$dir/empty.safetensors" --id two --detached --timeout 2m >/dev/null &
waiting=$!
room() { [[ $(ctl a metrics) == *$'\n'"rdtd_room_waiters $1"$'\n'* ]]; }
until_true room 1
printf '[daemon]\nlog_level = debug\nworker_threads = 3\nmemory_limit = 64MiB\n[limits]\nowner_max_objects = 2\n[ucx]\nspin_polls = 300\n' >"$dir/a/conf"
ctl a doctor --json >"$dir/json"
grep -q 'has 3 changes that the daemon has not read, and 2 that need a restart; the first is \[daemon\] ' "$dir/json" ||
  bad "the doctor: $(cat "$dir/json")"
ctl a reload --check >"$dir/out" || bad "reload --check"
says "$dir/out" '[limits] owner_max_objects: 1 -> 2'
room 1 || bad "--check has changed something"
ctl a reload >"$dir/out" || bad "reload"
wait "$waiting" || bad "a put that waited for room did not go on when the limit was raised"
[[ $(wc -l <"$dir/out") == 5 ]] || bad "not five changes: $(cat "$dir/out")"
says "$dir/out" '[daemon] log_level: info -> debug'
says "$dir/out" '[daemon] worker_threads: 2 -> 3   (at the next start of the daemon)'
says "$dir/out" '[limits] owner_max_objects: 1 -> 2'
says "$dir/out" '[ucx] spin_polls: (empty) -> 300   (at the next start of the daemon)'
[[ $(ctl a log-level) == 'the log level is debug' ]] || bad "$(ctl a log-level)"
[[ $(ctl a status --json) == *'"memory_limit_bytes": 67108864,'* ]] || bad "memory_limit did not change: $(ctl a status)"
ctl a put -q "$dir/empty.safetensors" --detached >/dev/null 2>"$dir/why" && bad "the new limit does not count"
says "$dir/why" 'has 2 objects of at most 2'
[[ $(ctl a reload --json) == *'"key": "worker_threads",'*'"applied": false'* ]] ||
  bad "what is for the next start is not named again"
says "$dir/a/log" 'warn: reload: [daemon] worker_threads = "3" is for the next start; until then it stays "2"'

# A pipe without a writer stands for a file system that does not answer: the daemon serves others, and a reload that nobody waits
# for any more changes nothing.
mv "$dir/a/conf" "$dir/a/answers"
mkfifo "$dir/a/conf"
ctl a reload >"$dir/out" 2>"$dir/why" && bad "a reload without its file"
says "$dir/why" 'does not answer, and nothing has changed'
ctl a reload --check 2>/dev/null &
waiting=$!
ctl a ping >/dev/null || bad "the daemon waits for the file"
mv "$dir/a/conf" "$dir/pipe"
mv "$dir/a/answers" "$dir/a/conf"
printf '[limits]\nowner_max_objects = 7\n' >"$dir/pipe"
wait "$waiting" # it was behind the first: it got its answer now, or was given up as well
ctl a reload >"$dir/out" || bad "no reload after the file system has come back: $(cat "$dir/out")"
grep -q owner_max_objects "$dir/out" && bad "a reload that was given up has changed something: $(cat "$dir/out")"

# A level that rdtctl has set gives way to the configuration's.
ctl a log-level -q trace
ctl a reload | grep -qF '[daemon] log_level: trace -> debug' || bad "the log level of log-level stays"

printf '[limits]\nowner_max_objects = 5\nowner_max_object = 6\n' >"$dir/a/conf"
ctl a reload 2>"$dir/why"
[[ $? == 1 ]] || bad "a fault is no failure"
says "$dir/why" "INVALID: $dir/a/conf:3: [limits] owner_max_object = 6: no such key"
kill -HUP "${pid[a]}"
logged() { grep -qF -- "$2" "$dir/$1/log"; }
until_true logged a 'error: SIGHUP: the configuration was not reloaded, and nothing has changed: '
ctl a limits -a --json >"$dir/out"
says "$dir/out" '"limit": 2'
ctl a doctor --json >"$dir/json"
says "$dir/json" 'The configuration has a fault since the daemon read it: '
sed -i '$d' "$dir/a/conf"
kill -HUP "${pid[a]}"
until_true logged a 'info: reload: [limits] owner_max_objects is "5" now; it was "2"'
if [[ $(id -u) == 0 ]]; then
  chmod 755 "$dir" "$dir/a"
  setpriv --reuid 4321 --clear-groups "$RDT_BUILD_DIR/rdtctl" --socket "$dir/a/s" reload 2>"$dir/why" &&
    bad "another user may reload"
  says "$dir/why" 'DENIED: only root'
fi
stop a

# ---- several nodes: the nodes file and the key ----

address() { ctl "$1" status --json | sed -n 's/^ *"address": "\(.*\)",/\1/p'; }
state() { # NODE PEER: the state of the link to the peer of that name
  ctl "$1" peers --json | "${PYTHON:-/usr/bin/python3}" -c 'import json, sys
print(*(p["state"] for p in json.load(sys.stdin)["peers"] if p["name"] == sys.argv[1]))' "$2"
}
is() { [[ $(state "$1" "$2") == "$3" ]]; }
umask 077
echo "the first key of all nodes" >"$dir/key1"
echo "the second key of all nodes" >"$dir/key2"
for node in b c d; do
  mkdir "$dir/$node"
  cp "$dir/key1" "$dir/$node/key"
  printf '[network]\nlisten = 127.0.0.1:0\nkey_file = key\nnodes = nodes\n' >"$dir/$node/conf"
  : >"$dir/$node/nodes"
done
start b
start c
echo "bee $(address b)" >"$dir/c/nodes"
ctl c reload >"$dir/out"
says "$dir/out" '[network] nodes: a file with 0 nodes -> a file with 1 node'
until_true is c bee up
epoch=$(grep -c 'is up' "$dir/c/log")

port=$("${PYTHON:-/usr/bin/python3}" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf 'queen %s\ngone 127.0.0.1:%d\n' "$(address b)" "$port" >"$dir/c/nodes"
ctl c reload -q >/dev/null
is c queen up || bad "the node was not renamed: $(ctl c peers)"
[[ $(state c gone) =~ connecting|backoff|idle ]] || bad "the new node is not known: $(ctl c peers)"
until_true logged c 'node gone: '
sed -i '$d' "$dir/c/nodes"
ctl c reload -q >/dev/null
[[ -z $(state c gone) ]] || bad "a node that is not listed any more has its name: $(ctl c peers)"
not_dialled() { ctl c peers --json | "${PYTHON:-/usr/bin/python3}" -c 'import json, sys
sys.exit(not all(p["state"] in ("up", "idle") for p in json.load(sys.stdin)["peers"]))'; }
until_true not_dialled

cp "$dir/key2" "$dir/b/key"
ctl b reload >"$dir/out"
says "$dir/out" '[network] key_file: a file with an earlier key -> a file with another key'
cp "$dir/key2" "$dir/d/key"
echo "bee $(address b)" >"$dir/d/nodes"
start d
until_true is d bee up
is c queen up && [[ $(grep -c 'is up' "$dir/c/log") == "$epoch" ]] ||
  bad "the link broke when the key changed: $(cat "$dir/c/log")"
stop c
start c # with the earlier key
until_true is c queen backoff
cp "$dir/key2" "$dir/c/key"
ctl c reload -q >/dev/null
until_true is c queen up
echo short >"$dir/c/key"
ctl c reload 2>"$dir/why" && bad "a bad key is taken"
says "$dir/why" 'has 5 bytes, at least 16 are needed'
is c queen up || bad "a bad key broke the link"
sed -i '/key_file/d; /listen/d' "$dir/c/conf"
ctl c reload >"$dir/out"
grep -q 'key_file: .*/key -> (empty)   (at the next start' "$dir/out" || bad "no key: $(cat "$dir/out")"
is c queen up || bad "the link broke without a key"
for node in b c d; do stop $node; done
((failures == 0))
