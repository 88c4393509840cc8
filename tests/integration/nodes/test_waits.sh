#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Who waits for what nobody has put or published is shown on the reader's node and on the object's; and a ref of a node that had
# no state_dir says after its restart that it is of an earlier life of the node.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
dir=$(mktemp -d)
trap '{ kill "${pids[@]}"; wait; } 2>/dev/null; rm -rf "$dir"' EXIT
pids=()
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1.s" "${@:2}"; }
shows() { ctl "${@:2}" >"$dir/said" 2>&1; grep -qE -- "$1" "$dir/said"; } # PATTERN NODE ARGUMENTS ...

umask 077
echo "a key of two nodes, long enough" >"$dir/key"
for node in a b; do
  serve "$dir/$node.s" "$dir/$node.log" --state-dir '' --key-file "$dir/key" --listen 127.0.0.1:0
  pids+=("$daemon")
done
address=$(grep -o 'peers at .*' "$dir/a.log" | head -1)
address=${address#peers at }
ref=$("$RDT_BUILD_DIR/rdtctl" --socket "$dir/a.s" status --json | sed -nE 's/.*"node": "([0-9a-f]{32})".*/\1/p' | head -1)
ref=rdt:$ref/obj?a=$address

ctl b fetch --name w --node "$address" -o "$dir/w" >/dev/null 2>&1 &
pids+=("$!")
ctl b fetch "$ref" -o "$dir/obj" >/dev/null 2>&1 &
pids+=("$!")
until_true shows "w .*for somebody to publish the name on node $address" b transfers
until_true shows "obj .*for somebody to put it on node $address" b transfers
until_true shows 'w .*parked .*for somebody to publish the name' a transfers
until_true shows 'obj .*parked .*for somebody to put it' a transfers
waited='has waited for [0-9.]+ [mun]?s \(transfer [0-9]+\)'
shows "^w is awaited: node [0-9.:]+ $waited" a names || bad "names on a: $(ctl a names)"
shows "^w is awaited: client [0-9]+ $waited" b names || bad "names on b: $(ctl b names)"
shows "NOT_FOUND: .*\"w\"; node [0-9.:]+ $waited" a stat --name w || bad "stat of the name: $(ctl a stat --name w 2>&1)"
shows "^waiting +node [0-9.:]+ $waited" a stat obj || bad "stat of the object: $(ctl a stat obj)"
shows 'waits: +for somebody to publish the name on node' b explain w || bad "explain: $(ctl b explain w)"

# ---- waits, which are no fetches ----

ctl b wait --name v --node "$address" >/dev/null 2>&1 &
pids+=("$!")
ctl a wait --name u >/dev/null 2>&1 &
pids+=("$!")
ctl a wait nothing >/dev/null 2>&1 &
pids+=("$!")
waited='has waited for [0-9.]+ [mun]?s \(wait\)'
until_true shows "^v is awaited: node [0-9.:]+ $waited for somebody to publish the name" a names
until_true shows "^u is awaited: client [0-9]+ $waited for somebody to publish the name" a names
shows "NOT_FOUND: .*\"u\"; client [0-9]+ $waited" a stat --name u || bad "stat of a name: $(ctl a stat --name u 2>&1)"
until_true shows "^waiting +client [0-9]+ $waited" a stat nothing

# ---- an earlier life ----

kill "${pids[0]}"
wait "${pids[0]}"
serve "$dir/a.s" "$dir/a2.log" --state-dir '' --key-file "$dir/key" --listen "$address"
pids[0]=$daemon
shows 'NOT_FOUND: the ref is of an earlier life of this node' a stat "$ref" || bad "stat here: $(ctl a stat "$ref" 2>&1)"
shows 'NOT_FOUND: the ref is of an earlier life of this node' a fetch "$ref" -o "$dir/x" --timeout 9s ||
  bad "fetch here: $(ctl a fetch "$ref" -o "$dir/x" --timeout 9s 2>&1)"
until_true shows 'PEER_LOST: .*without a state_dir each start is another node' b stat "$ref" || bad "stat there: $(ctl b stat "$ref" 2>&1)"
((failures == 0))
