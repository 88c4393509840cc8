#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Names whose one truth is in a real etcd: found without an address, waited for, moved with their versions, claimed by two nodes at
# once, taken over when a lease has expired, fenced when their former node returns; etcd is frozen, killed, and built anew.
# seconds: 300
set -uo pipefail
if [[ -z ${RDT_INSIDE:-} ]]; then
  [[ $(id -u) == 0 ]] && unshare -n true 2>/dev/null || { echo "no rights for namespaces"; exit 77; }
  [[ -x $RDT_BUILD_DIR/rdtd-etcd ]] || { echo "rdtd-etcd is not built"; exit 77; }
  command -v etcd etcdctl >/dev/null || { echo "etcd-server or etcd-client is not installed"; exit 77; }
  RDT_INSIDE=1 exec unshare -n bash "$0" "$@"
fi
ip link set lo up
dir=$(mktemp -d)
declare -A pid
# shellcheck disable=SC2317
cleanup() { { kill -CONT "${pid[@]}" $(pgrep -g 0 rdtd-etcd); kill "${pid[@]}" $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
cd "$dir" || exit 1
export ETCDCTL_API=3
failures=0
bad() { echo "FAILED: $*"; failures=$((failures + 1)); }
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1/s" "${@:2}"; }
says() { grep "$@" >/dev/null; }
until_true() { # COMMAND ...
  local deadline=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { bad "not true in time: $*"; return 1; }
    sleep 0.05
  done
}
head -c 32 /dev/urandom | base64 >key
chmod 600 key
etcd_start() {
  etcd --data-dir etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380 >>etcd.log 2>&1 &
  pid[etcd]=$!
  until_true etcdctl endpoint health
}
etcd_start
declare -A address=([a]=127.0.0.2:7411 [b]=127.0.0.3:7411 [c]=127.0.0.4:7411)
start() {
  mkdir -p "$1"
  printf '[network]\nlisten = %s\nkey_file = %s\nbackoff_max = 500ms\npeer_timeout = 2s\netcd_ttl = 2s\nnames = etcd\netcd_endpoints = %s\n' \
    "${address[$1]}" "$dir/key" http://127.0.0.1:2379 >"$1/conf"
  "$RDT_BUILD_DIR/rdtd" --config "$1/conf" --socket "$dir/$1/s" --state-dir "$dir/$1" --backend-dir "$RDT_BUILD_DIR/backends" \
    2>>"$1/log" &
  pid[$1]=$!
  until_true ctl "$1" ping -q --timeout 1s || cat "$1/log"
}
stop() { kill "${pid[$1]}"; wait "${pid[$1]}" || bad "$1 ended with $?"; unset "pid[$1]"; }
helper() { pgrep -P "${pid[$1]}" rdtd-etcd; }
metric() { ctl "$1" metrics | says -E "^rdtd_directory_etcd_$2"; }
up() { metric "$1" 'up 1'; }
down() { metric "$1" 'up 0'; }
array() { { printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '|u1', 'fortran_order': False, 'shape': (100000,)}"; head -c 100000 /dev/zero | tr '\0' "$2"; } >"$1"; }
for value in 1 2 3 4; do array v$value.npy $value; done
publish() { ctl "$1" put -q "$2" --detached --ttl 10m --publish "$3"; }
has() { ctl "$1" fetch -q --name "$2" -o "$1/got.npy" --timeout 20s "${@:4}" && cmp <(tail -c 100000 "$1/got.npy") <(tail -c 100000 "$3"); }
in_etcd() { etcdctl get --prefix /rdtd/names/ | says -- "$1"; }

for node in a b c; do start $node; done
for node in a b c; do until_true up $node; done
publish a v1.npy weights >out || bad "a cannot publish: $(cat out a/log)"
for node in a b c; do has $node weights v1.npy || bad "$node does not find weights"; done
ctl c stat --name weights >out || bad "c does not stat weights"
in_etcd '"version":1' || bad "etcd has $(etcdctl get --prefix /rdtd/names/)"

# Waiters: of the next version, and of a name that nobody has published yet.
has b weights v2.npy --after 1 &
waiter=$!
has c later v3.npy &
later=$!
publish a v2.npy weights >/dev/null || bad "no second version"
wait $waiter || bad "b does not get the second version"
publish b v3.npy later >/dev/null || bad "b cannot publish"
wait $later || bad "c does not get a name that was published later"
if ctl c fetch -q --name nobody -o c/got.npy --timeout 1s 2>why; then bad "a name that nobody has published is found"; fi
grep -q 'TIMED_OUT.*nobody has published' why || bad "$(cat why)"
if ctl c stat --name nobody 2>why; then bad "a name that nobody has published is there"; fi

# Two nodes that publish one name: one after the other, and at once.
if publish b v4.npy weights 2>why; then bad "two nodes publish one name"; fi
grep -Eq 'EXISTS: .*"weights" is published on node .*epoch 1, version 2' why || bad "$(cat why)"
for i in 1 2 3 4 5; do
  publish a v1.npy race$i >/dev/null 2>&1 & one=$!
  publish b v2.npy race$i >/dev/null 2>&1 & other=$!
  won=0
  wait $one && won=$((won + 1)) && file=v1.npy
  wait $other && won=$((won + 1)) && file=v2.npy
  ((won == 1)) || bad "$won nodes have published race$i"
  for node in a b c; do has $node race$i $file || bad "$node does not find the winner of race$i"; done
done

# The name moves to another node, and its versions go on.
ctl c unpublish weights || bad "c cannot unpublish a name of a"
until_true publish b v4.npy weights
for node in a b c; do has $node weights v4.npy --after 2 || bad "$node does not find weights on b"; done

# The lease of a node that is frozen expires, another one takes its name over, and the first is fenced.
publish a v1.npy frozen >/dev/null || bad "a cannot publish"
a_helper=$(helper a)
kill -STOP "${pid[a]}" "$a_helper"
until_true publish c v3.npy frozen
in_etcd '"epoch":2' || bad "the epoch did not grow: $(etcdctl get --prefix /rdtd/names/)"
has b frozen v3.npy --after 1 || bad "b does not find the name at its new node"
kill -CONT "${pid[a]}" "$a_helper"
until_true up a
until_true has a frozen v3.npy
refused() { publish a v1.npy frozen 2>why; (($? != 0)) && grep -q EXISTS why; }
until_true refused
publish c v4.npy frozen >/dev/null || bad "c cannot publish on"
for node in a b; do has $node frozen v4.npy --after 2 || bad "$node does not find the next version"; done

# etcd is frozen: known names go on, a new one says why it cannot be published.
kill -STOP "${pid[etcd]}"
for node in a b c; do until_true down $node; done
has a weights v4.npy || bad "a known name is lost while etcd is frozen"
publish c v1.npy frozen >/dev/null || bad "a known name has no next version while etcd is frozen"
has b frozen v1.npy --after 3 || bad "b does not find the version that was published while etcd is frozen"
if publish c v1.npy new 2>why; then bad "a new name is published without etcd"; fi
grep -q 'TIMED_OUT.*etcd' why || bad "$(cat why)"
if ctl c fetch -q --name nobody -o c/got.npy --timeout 1s 2>why; then bad "a name that nobody has published is found"; fi
grep -q 'TIMED_OUT.*etcd, which would know the name, cannot be asked' why || bad "$(cat why)"
ctl b unpublish later || bad "b cannot unpublish while etcd is frozen"
has c new v2.npy &
waiter=$!
kill -CONT "${pid[etcd]}"
for node in a b c; do until_true up $node; done
until_true publish a v2.npy new
wait $waiter || bad "c does not get a name for which it waited while etcd was frozen"
until_true publish a v1.npy later # etcd has learnt that b ended it

# etcd is killed and starts again; then without its data.
kill -9 "${pid[etcd]}"
wait "${pid[etcd]}" 2>/dev/null
until_true down a
etcd_start
for node in a b c; do until_true up $node; done
has a weights v4.npy || bad "a name is lost with a restart of etcd"
kill -9 "${pid[etcd]}"
wait "${pid[etcd]}" 2>/dev/null
rm -rf etcd
etcd_start
until_true in_etcd weights
until_true in_etcd frozen
for node in a b c; do until_true up $node; has $node weights v4.npy || bad "a name is lost with the data of etcd"; done
if publish a v4.npy weights 2>why; then bad "two nodes publish one name in the new etcd"; fi

# etcd says otherwise than the node that knows: a name that is published is written again, one that is not is ended.
b_value=$(etcdctl get --print-value-only /rdtd/names/0@/weights)
etcdctl del /rdtd/names/0@/weights | says 1 || bad "the key of weights is another one"
until_true in_etcd weights
etcdctl put /rdtd/names/0@/ghost "$b_value" >/dev/null
ended() { etcdctl get --print-value-only /rdtd/names/0@/ghost | says '"held":false'; }
until_true ended

# An END that etcd has refused, because the lease under what has ended is gone, is sent again although etcd was never away.
value_says() { etcdctl get --print-value-only "/rdtd/names/0@/$1" | says "$2"; }
publish a v1.npy once >/dev/null || bad "a cannot publish"
ctl a unpublish once || bad "a cannot unpublish"
until_true value_says once '"held":false'
lease=$(etcdctl get -w json /rdtd/names/0@/once | grep -o '"lease":[0-9]*')
publish a v1.npy retired >/dev/null || bad "a cannot publish"
until_true value_says retired '"held":true'
etcdctl lease revoke "$(printf %x "${lease#*:}")" >/dev/null || bad "no lease $lease"
ctl a unpublish retired || bad "a cannot unpublish"
until_true value_says retired '"held":false'
until_true publish b v2.npy retired

# A name that another node took over comes back when that node is gone: its former node still publishes it.
publish a v1.npy back >/dev/null || bad "a cannot publish"
a_helper=$(helper a)
kill -STOP "${pid[a]}" "$a_helper"
until_true publish c v3.npy back
kill -CONT "${pid[a]}" "$a_helper"
until_true up a
until_true has a back v3.npy
kill -9 "${pid[c]}" "$(helper c)"
wait "${pid[c]}" 2>/dev/null
until_true has b back v1.npy
start c
until_true up c

# A value that is not rdtd's.
etcdctl put /rdtd/names/0@/weird 'no JSON' >/dev/null
strange() { ctl a nodes | says 'key /rdtd/names/0@/weird'; }
until_true strange
has a weights v4.npy || bad "a strange value hides others"

for node in a b c; do stop $node; done
[[ -z $(etcdctl get --prefix /rdtd/nodes/ --keys-only) ]] || bad "nodes that have ended are in etcd"

# A program that was told to end by other options, and does not, does not keep its daemon from ending.
start c
c_helper=$(helper c)
kill -STOP "$c_helper"
sed -i 's/etcd_ttl = 2s/etcd_ttl = 3s/' c/conf
ctl c reload >/dev/null || bad "no reload"
stop c
kill -CONT "$c_helper"
grep -l 'AddressSanitizer\|runtime error' ./*/log && bad "a sanitizer has found something"
((failures == 0))
