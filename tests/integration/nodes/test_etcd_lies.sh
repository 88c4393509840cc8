#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A fake etcd that lies, in every way that tests/support/fake_etcd.py has: what it said before stays known, the error says what is
# wrong, it is not asked in a hurry, and when it tells the truth again, so does rdtctl.
# seconds: 420
set -uo pipefail
if [[ -z ${RDT_INSIDE:-} ]]; then
  [[ $(id -u) == 0 ]] && unshare -n true 2>/dev/null || { echo "no rights for namespaces"; exit 77; }
  [[ -x $RDT_BUILD_DIR/rdtd-etcd ]] || { echo "rdtd-etcd is not built"; exit 77; }
  RDT_INSIDE=1 exec unshare -n bash "$0" "$@"
fi
ip link set lo up
fake=$PWD/tests/support/fake_etcd.py
dir=$(mktemp -d)
# shellcheck disable=SC2317
cleanup() { { kill $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
cd "$dir" || exit 1
failures=0
bad() { echo "FAILED: $*"; failures=$((failures + 1)); }
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/s" "$@"; }
says() { grep "$@" >/dev/null; }
until_true() { # COMMAND ...
  local deadline=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { bad "not true in time: $*: $(ctl nodes)"; return 1; }
    sleep 0.05
  done
}
lie() { echo "$1" >lie.new && mv lie.new lie; }
head -c 32 /dev/urandom | base64 >key
chmod 600 key
lie truth
python3 "$fake" 127.0.0.1 2379 "$dir" &
fake_pid=$!
printf '[network]\nlisten = 127.0.0.2:7411\nkey_file = %s\netcd_ttl = 2s\netcd_endpoints = http://127.0.0.1:2379\n' "$dir/key" >conf
"$RDT_BUILD_DIR/rdtd" --config conf --socket "$dir/s" --state-dir "$dir/state" --backend-dir "$RDT_BUILD_DIR/backends" 2>log &
daemon=$!
until_true ctl ping -q --timeout 1s

listed() { ctl nodes | says -E '127\.0\.0\.9:7411 .* etcd '; }
truth() { ctl metrics | says '^rdtd_directory_etcd_up 1' && ! ctl nodes | says 'etcd cannot be read'; }
why() { ctl nodes | says -E "etcd cannot be read: .*$1"; }
until_true listed
until_true truth

# lies LIE SENTENCE: what nodes says
lies() {
  lie "$1"
  until_true why "$2"
  listed || bad "$1: what was known is lost"
  ctl ping -q --timeout 1s || bad "$1: the daemon does not answer"
  lie truth
  until_true truth
  listed || bad "$1: what was known is lost afterwards"
}
lies wrong-json 'is not JSON'
lies html 'is not JSON'
lies giant 'too large|imed out'
lies hang 'imed out'
lies close 'etcd at http://127.0.0.1:2379: cannot '
lies silent 'watch is silent'
# Numbers at the edges of their ranges. What is too large for any number of JSON's is no JSON for the reader.
for number in '"-1"' '"9223372036854775807"' 1.5 '"1e3"'; do
  lies "header=$number" 'no header|no number that etcd counts to'
done
for number in '"-1"' '"9223372036854775808"' 1.5; do
  lies "lease=$number" 'cannot get a lease: it has no id'
done
lie edges
until_true test -s edges
until_true why "$(cat edges) keys below /rdtd are not rdtd's or cannot be read"
listed || bad "keys at the edges: what was known is lost"
[[ $(ctl nodes | grep -c '127\.0\.0\.8') == 0 ]] || bad "a node at the edge is known: $(ctl nodes)"
lie truth
until_true truth
# Only a new list shows these: the watch that goes on is ended first.
lie no-watch
until_true why 'watch has ended'
for one in 'no-header|no header' 'base64|2 keys below /rdtd' 'giant-value|1 keys below /rdtd' 'number|no header' \
  'compacted|cancelled again and again'; do
  lie "${one%%|*}"
  until_true why "${one#*|}"
  listed || bad "$one: what was known is lost"
done
lie truth
until_true truth

# An older state, or another cluster, is refused; when nothing else comes, it counts.
for one in 'backwards|an older state' 'other|another cluster'; do
  lie "${one%%|*}"
  until_true why "${one#*|}"
  listed || bad "$one: what was known is lost"
  until_true truth
done

# It is asked with pauses.
: >requests
kill -9 $fake_pid
wait $fake_pid 2>/dev/null
until_true why 'onnect to'
before=$(ctl metrics | sed -n 's/^rdtd_directory_etcd_reconnects_total //p')
python3 "$fake" 127.0.0.1 2379 "$dir" &
fake_pid=$!
until_true truth
((before < 200)) || bad "etcd was turned to $before times"
grep -c . requests >/dev/null || bad "the new fake is not asked"
lies silent 'watch is silent' # although its revisions begin anew

# It does not answer any more when the daemon ends: nothing stays behind.
program=$(pgrep -P $daemon rdtd-etcd)
kill -STOP $fake_pid
sleep 1 # a request is under way
kill $daemon
wait $daemon || bad "the daemon ended with $?"
for ((i = 0; i < 200; i++)); do
  kill -0 "$program" 2>/dev/null || break
  sleep 0.05
done
! kill -0 "$program" 2>/dev/null || bad "rdtd-etcd outlives the daemon"
kill -CONT $fake_pid
! grep -l 'AddressSanitizer\|runtime error' log || bad "a sanitizer has found something"
((failures == 0))
