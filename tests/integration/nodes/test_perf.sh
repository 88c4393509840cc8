#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl perf measures each path between two nodes beside a plain socket, names the reason of those that it cannot measure, frees
# what it has put, and refuses ends that are no rdtctl perf.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
dir=$(mktemp -d)
declare -A pid
# shellcheck disable=SC2317
cleanup() { { kill "${pid[@]}"; wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1" "${@:2}"; }
(umask 077; head -c 32 /dev/urandom | base64 >"$dir/key")
for node in a b; do
  serve "$dir/$node" "$dir/$node.log" --state-dir '' --trusted-network yes --interfaces lo --listen 127.0.0.1:0 \
    --key-file "$dir/key"
  pid[$node]=$daemon
done
port=$((10000 + RANDOM % 9900)) # below those of other tests
"$RDT_BUILD_DIR/rdtctl" --socket "$dir/a" perf --serve "127.0.0.1:$port" 2>"$dir/serve.log" &
pid[serve]=$!
until_true grep -q serves "$dir/serve.log"

ctl b perf "127.0.0.1:$port" --count 8 --bytes 1048576 >"$dir/out" || bad "no measurement: $(cat "$dir/serve.log")"
for row in 'plain socket .* 100 %  tcp, not encrypted ' 'peer link  *[0-9.]* [um]*s' 'stream .*B/s .* %  tcp, not encrypted ' 'ucx .*B/s .* %'; do
  grep -Eq "^$row" "$dir/out" || bad "no row '$row': $(cat "$dir/out")"
done
ctl b perf "127.0.0.1:$port" -c 2 -b 65536 --json >"$dir/json" || bad "no JSON"
/usr/bin/python3 - "$dir/json" <<'PY' || bad "$(cat "$dir/json")"
import json, sys
report = json.load(open(sys.argv[1]))
paths = {row["path"]: row for row in report["paths"]}
assert all(paths["plain socket"][size + "_ns"] > 0 for size in ("small", "middle", "large"))
assert paths["stream"]["large_ns"] > 0 and "small_ns" not in paths["stream"] and paths["ucx"]["middle_ns"] > 0
assert report["large_bytes"] == 65536 and report["count"] == 2
PY
nothing_left() { [[ $(ctl a status --json) == *'"objects": 0,'* ]]; }
until_true nothing_left

# A stranger costs nothing, and the next end is served.
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'GET / HTTP/1.1\r\n\r\n' >&3
cat <&3 >/dev/null
exec 3>&-
until_true grep -q 'the other end is not rdtctl perf' "$dir/serve.log"
printf 'PUT 99999999999999\n' >"/dev/tcp/127.0.0.1/$port"
ctl b perf "127.0.0.1:$port" -c 1 -b 65536 >/dev/null || bad "a stranger has ended it: $(cat "$dir/serve.log")"
ctl b perf "127.0.0.1:${pid[a]}" 2>"$dir/why" && bad "nobody listens there"
ctl b perf nowhere 2>"$dir/why"
grep -q "'nowhere' is no address: expected HOST:PORT" "$dir/why" || bad "$(cat "$dir/why")"
kill "${pid[serve]}"
wait "${pid[serve]}" || bad "SIGTERM ends it with $?"
unset 'pid[serve]'
((failures == 0))
