#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The node table and names that are found from any node, with real daemons in a network namespace: the nodes file is read again
# when it changes, and the last good one counts while it is wrong; DNS by a real name server (addresses, SRV, an answer that
# changes, a server that ends); names are fetched, waited for and unpublished without an address; two nodes publish one name;
# the node of a name is frozen, and killed.
# seconds: 240
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
if [[ -z ${RDT_INSIDE:-} ]]; then
  [[ $(id -u) == 0 ]] && unshare -n -m true 2>/dev/null || { echo "no rights for namespaces"; exit 77; }
  command -v dnsmasq >/dev/null || { echo "dnsmasq is not installed"; exit 77; }
  RDT_INSIDE=1 exec unshare -n -m bash "$0" "$@"
fi
ip link set lo up
dir=$(mktemp -d)
declare -A pid
# shellcheck disable=SC2317
cleanup() { { kill -CONT "${pid[@]}"; kill "${pid[@]}" $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
cd "$dir" || exit 1
echo 'nameserver 127.0.0.53' >resolv.conf
mount --make-rprivate / && mount --bind resolv.conf "$(realpath /etc/resolv.conf)" || { echo "resolv.conf cannot be replaced"; exit 77; }
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1/s" "${@:2}"; }
says() { grep "$@" >/dev/null; } # reads all of its input, so that the writer is not killed by a closed pipe
head -c 32 /dev/urandom | base64 >key
chmod 600 key

declare -A address=([a]=127.0.0.2:7411 [b]=127.0.0.3:7411 [c]=127.0.0.4:7411 [d]=127.0.0.5:7411)
# start NODE KEY=VALUE ...: with these keys of [network]
start() {
  mkdir -p "$1"
  printf '[network]\nlisten = %s\nkey_file = %s\nbackoff_max = 500ms\npeer_timeout = 2s\n' "${address[$1]}" "$dir/key" >"$1/conf"
  printf '%s\n' "${@:2}" >>"$1/conf"
  serve "$dir/$1/s" "$1/log" --config "$1/conf" --state-dir "$dir/$1"
  pid[$1]=$daemon
}
stop() { kill "${pid[$1]}"; wait "${pid[$1]}" || bad "$1 ended with $?"; unset "pid[$1]"; }
# link NODE OTHER SOURCE STATE: whether NODE lists OTHER so
link() { ctl "$1" nodes | says -E "${address[$2]//./\\.}  *[0-9a-f-]+  *$3  *.*  *$4 "; }

# ---- the nodes file ----

printf 'a %s\nb %s\n' "${address[a]}" "${address[b]}" >nodes
mkdir a
echo 00000000000040008000000000000001 >a/node_uuid # where nothing else decides between two nodes, a has the name
chmod 600 a/node_uuid
for node in a b c; do start $node "nodes = $dir/nodes"; done
until_true link a b file up
if link a c file up; then bad "c is listed before the file names it"; fi
printf 'a %s\nb %s\nc %s\n' "${address[a]}" "${address[b]}" "${address[c]}" >nodes.new
mv nodes.new nodes
for node in a b; do until_true link $node c file up; done
until_true link c a file up
ctl a nodes --json >json
grep -q '"source": "self"' json && grep -q '"source": "file"' json || bad "nodes --json: $(cat json)"

echo 'this is no line of a nodes file' >nodes
warns() { # the doctor's exit status says that there is a warning
  ctl "$1" doctor --json >checks
  tr -d '\n ' <checks | says '"id":"RDT040","name":"directory","status":"warn"'
}
until_true warns a
link a b file up || bad "a broken nodes file ends what was known: $(ctl a nodes)"
ctl a nodes | says 'file cannot be read: .*nodes:1' || bad "nodes does not say that its file is broken: $(ctl a nodes)"
ctl a metrics | says '^rdtd_directory_failing{source="file"} 1' || bad "no metric of the broken file: $(ctl a metrics | grep directory)"
printf 'a %s\nb %s\nc %s\n' "${address[a]}" "${address[b]}" "${address[c]}" >nodes
mends() { ! warns "$1"; }
until_true mends a

# ---- names ----

# array FILE VALUE: a safetensors file of 100000 bytes
array() { { printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}}'; head -c 100000 /dev/zero | tr '\0' "$2"; } >"$1"; }
for value in 1 2 3 4; do array v$value.safetensors $value; done
# publish NODE FILE NAME: a detached object under the name
publish() { ctl "$1" put -q "$2" --detached --ttl 10m --publish "$3"; }
# has NODE NAME FILE [OPTION ...]: whether a fetch by the name alone brings the file
has() { ctl "$1" fetch -q --name "$2" -o "$1/got.safetensors" --timeout 20s "${@:4}" && cmp <(tail -c 100000 "$1/got.safetensors") <(tail -c 100000 "$3"); }

publish a v1.safetensors weights >out || bad "a cannot publish: $(cat out a/log)"
for node in a b c; do has $node weights v1.safetensors || bad "$node does not find weights"; done
ctl c stat --name weights >out || bad "c does not stat weights"
ctl c names --cluster | says "${address[a]//./\\.}.*weights" || bad "names --cluster: $(ctl c names --cluster)"

# Waiters: of the next version, and of a name that nobody has published yet.
has b weights v2.safetensors --after 1 &
waiter=$!
has c later v3.safetensors &
later=$!
parked() { ctl "$1" names | says -E "$2"; }
until_true parked a 'weights  *1  *.* 1 '
publish a v2.safetensors weights >/dev/null || bad "no second version"
wait $waiter || bad "b does not get the second version"
publish b v3.safetensors later >/dev/null || bad "b cannot publish"
wait $later || bad "c does not get a name that was published later"
if ctl c fetch -q --name nobody -o c/got.safetensors --timeout 1s 2>why; then bad "a name that nobody has published is found"; fi
grep -q 'TIMED_OUT.*nobody has published' why || bad "$(cat why)"

if [[ ${RDT_VARIANT:-release} == release ]]; then
  PYTHONPATH=$RDT_BUILD_DIR/python python3 - "$dir/c/s" >out 2>&1 <<'PYTHON' || bad "Python: $(cat out)"
import sys
import rdtd
with rdtd.connect(sys.argv[1]) as c:
    version, value = next(iter(c.versions("weights", timeout=20)))
    assert version == 2 and value["w"].shape == (100000,), (version, value)
PYTHON
fi

# Two nodes that publish one name.
if publish b v4.safetensors weights 2>why; then bad "two nodes publish one name"; fi
grep -Eq 'EXISTS: .*"weights" is published on node a .*epoch 1, version 2' why || bad "$(cat why)"
ctl b metrics | says '^rdtd_names_refused_total [1-9]' || bad "no metric of the refused name"
for node in a b c; do has $node weights v2.safetensors || bad "$node does not find weights after the dispute"; done
for i in 1 2 3 4 5; do # at once
  publish a v1.safetensors race$i >/dev/null 2>&1 & one=$!
  publish b v2.safetensors race$i >/dev/null 2>&1 & other=$!
  won=0
  wait $one && won=$((won + 1)) && file=v1.safetensors
  wait $other && won=$((won + 1)) && file=v2.safetensors
  ((won == 1)) || bad "$won nodes have published race$i"
  for node in a b c; do has $node race$i $file || bad "$node does not find the winner of race$i"; done
done

# The name moves to another node, and its versions go on.
ctl c unpublish weights || bad "c cannot unpublish a name of a"
until_true publish b v4.safetensors weights
for node in a b c; do has $node weights v4.safetensors --after 2 || bad "$node does not find weights on b"; done

# ---- the node of a name is frozen, and dies ----

publish a v1.safetensors dying >/dev/null || bad "a cannot publish"
has c dying v1.safetensors || bad "c does not find a name of a"
kill -STOP "${pid[a]}"
until_true link c a file '(backoff|connecting|idle)'
if ctl c fetch -q --name dying -o c/got.safetensors --timeout 5s 2>why; then bad "a name of a frozen node is fetched"; fi
grep -Eq 'PEER_LOST|TIMED_OUT' why || bad "$(cat why)"
has c weights v4.safetensors || bad "a name of b is not found while a is frozen"
if ctl c fetch -q --name new -o c/got.safetensors --timeout 1s 2>why; then bad "a name that nobody has published is found"; fi
grep -q 'TIMED_OUT.*of the 3 nodes that would know the name cannot be asked' why || bad "$(cat why)"
publish b v2.safetensors new >/dev/null || bad "b cannot publish a new name while a is frozen"
has c new v2.safetensors || bad "c does not find a new name while a is frozen"
until_true publish b v2.safetensors dying # after NAMES_STALE_NS
has c dying v2.safetensors --after 1 || bad "c does not find the name of the frozen node at its next one"
fenced() { # a, which is there again, had the name before b
  until_true has a dying v2.safetensors
  if publish a v3.safetensors dying 2>why; then bad "a publishes a name that b has taken over"; fi
  grep -q 'EXISTS: .*on node b' why || bad "$(cat why)"
}
kill -CONT "${pid[a]}"
until_true link c a file up
fenced
publish b v4.safetensors dying >/dev/null || bad "b cannot publish on"
for node in a c; do has $node dying v4.safetensors --after 2 || bad "$node does not find the next version"; done
ctl b unpublish dying || bad "b cannot unpublish"
until_true has c dying v1.safetensors # which a still has
ctl a unpublish dying || bad "a cannot unpublish"
until_true publish b v2.safetensors dying
kill -9 "${pid[a]}"
wait "${pid[a]}" 2>/dev/null
until_true link c a file '(backoff|connecting|idle)'
start a "nodes = $dir/nodes"
until_true link c a file up
fenced

# ---- no home can be asked ----

has c weights v4.safetensors || bad "c does not find weights"
kill -STOP "${pid[a]}"
until_true link c a file '(backoff|connecting|idle)'
has c weights v4.safetensors || bad "a known name is lost while a node is frozen"
kill -CONT "${pid[a]}"
until_true link c a file up

# ---- DNS ----

server() {
  dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --listen-address=127.0.0.53 --bind-interfaces --user=root \
    --pid-file --local-ttl=0 "$@" 2>dnslog &
  pid[dns]=$!
}
server --host-record=rdt.test,127.0.0.3
start d "nodes_dns = rdt.test:7411"
until_true link d b dns up
stop d
# shellcheck disable=SC2046
kill "${pid[dns]}"
wait "${pid[dns]}"
start d "nodes_dns = _rdt._tcp.rdt.test"
until_true warns d
server --host-record=c.rdt.test,127.0.0.4 --host-record=b.rdt.test,127.0.0.3 --srv-host=_rdt._tcp.rdt.test,c.rdt.test,7411 \
  --srv-host=_rdt._tcp.rdt.test,b.rdt.test,7411
named() { ctl d nodes | says -E "$1.rdt.test:7411  *[0-9a-f]{32}  *dns  *.*  *up"; }
until_true named b
until_true named c
until_true mends d
has d weights v4.safetensors || bad "a node by DNS does not find a name: $(ctl d nodes)"
kill "${pid[dns]}"
wait "${pid[dns]}"
unset "pid[dns]"
until_true warns d
named b && named c || bad "nodes are forgotten without a name server: $(ctl d nodes)"
ctl d metrics | says '^rdtd_directory_errors_total{source="dns"} [1-9]' || bad "no metric of the failed look-ups"
has d weights v4.safetensors || bad "a name is lost with the name server"

# ---- two nodes that could not talk have published one name ----

address[e]=127.0.0.6:7411 address[f]=127.0.0.7:7411
printf 'e %s\nf %s\n' "${address[e]}" "${address[f]}" >pair
start e "nodes = $dir/pair"
publish e v1.safetensors both >/dev/null || bad "e cannot publish alone"
kill -STOP "${pid[e]}"
start f "nodes = $dir/pair"
publish f v2.safetensors both >/dev/null || bad "f cannot publish alone"
kill -CONT "${pid[e]}"
until_true link e f file up
winner=e loser=f file=v1.safetensors
[[ $(ctl e status --json | grep '"node"') < $(ctl f status --json | grep '"node"') ]] || winner=f loser=e file=v2.safetensors
until_true has $loser both $file
has $winner both $file || bad "the two nodes do not agree on a name"
if publish $loser v3.safetensors both 2>why; then bad "the loser publishes on"; fi
grep -q "EXISTS: .*on node $winner" why || bad "$(cat why)"
publish $winner v3.safetensors both >/dev/null || bad "the winner cannot publish"
has $loser both v3.safetensors --after 1 || bad "the loser does not find the winner's next version"

for node in a b c d e f; do stop $node; done
grep -l 'AddressSanitizer\|runtime error' ./*/log && bad "a sanitizer has found something"
((failures == 0))
