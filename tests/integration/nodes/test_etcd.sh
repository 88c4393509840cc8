#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The node table by a real etcd of three members, each in a network namespace of its own: a member is killed, frozen, cut off; all
# of them are frozen, restarted, built anew; a lease expires while its node is frozen; what a node has missed is compacted;
# rdtd-etcd is killed; names on the nodes that etcd lists, while it is away too; user and password; TLS with client certificates.
# seconds: 420
set -uo pipefail
if [[ -z ${RDT_INSIDE:-} ]]; then
  [[ $(id -u) == 0 ]] && unshare -n -m true 2>/dev/null || { echo "no rights for namespaces"; exit 77; }
  [[ -x $RDT_BUILD_DIR/rdtd-etcd ]] || { echo "rdtd-etcd is not built"; exit 77; }
  command -v etcd etcdctl ip >/dev/null || { echo "etcd-server, etcd-client or iproute2 is not installed"; exit 77; }
  RDT_INSIDE=1 exec unshare -n -m bash "$0" "$@"
fi
dir=$(mktemp -d)
declare -A pid
# shellcheck disable=SC2317
cleanup() { { kill -CONT "${pid[@]}"; kill "${pid[@]}" $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
cd "$dir" || exit 1
export ETCDCTL_API=3
failures=0
bad() { echo "FAILED: $*"; failures=$((failures + 1)); }
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1/s" "${@:2}"; }
says() { grep "$@" >/dev/null; } # reads all of its input, so that the writer is not killed by a closed pipe
until_true() { # COMMAND ...
  local deadline=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { bad "not true in time: $*"; return 1; }
    sleep 0.05
  done
}
head -c 32 /dev/urandom | base64 >key
chmod 600 key

# ---- three members, by a bridge ----

mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up &&
  ip link add bridge type bridge && ip addr add 10.9.0.100/24 dev bridge && ip link set bridge up || { echo "no bridge"; exit 77; }
cluster=
for m in 1 2 3; do
  { ip netns add m$m && ip link add port$m type veth peer name eth0 netns m$m && ip link set port$m master bridge up &&
    ip -n m$m addr add 10.9.0.$m/24 dev eth0 && ip -n m$m link set eth0 up && ip -n m$m link set lo up; } || exit 1
  cluster+=${cluster:+,}m$m=http://10.9.0.$m:2380
done
endpoints=http://10.9.0.1:2379,http://10.9.0.2:2379,http://10.9.0.3:2379
member() { # M
  local token=new
  [[ ! -d etcd$1 ]] || token=existing
  ip netns exec m$1 etcd --name m$1 --data-dir etcd$1 --listen-client-urls http://10.9.0.$1:2379 \
    --advertise-client-urls http://10.9.0.$1:2379 --listen-peer-urls http://10.9.0.$1:2380 \
    --initial-advertise-peer-urls http://10.9.0.$1:2380 --initial-cluster "$cluster" --initial-cluster-state $token \
    --heartbeat-interval 100 --election-timeout 1000 >>etcd$1.log 2>&1 &
  pid[m$1]=$!
}
kill_member() { kill -9 "${pid[m$1]}"; wait "${pid[m$1]}" 2>/dev/null; }
# etcd ARGUMENT ...: at the members that live
etcd_ctl() { etcdctl --endpoints "$endpoints" --command-timeout 5s "$@"; }
for m in 1 2 3; do member $m; done
until_true etcd_ctl endpoint health --cluster || tail etcd?.log

declare -A address=([a]=127.0.0.2:7411 [b]=127.0.0.3:7411 [c]=127.0.0.4:7411 [d]=127.0.0.5:7411)
# start NODE KEY=VALUE ...: with these keys of [network]
start() {
  mkdir -p "$1"
  printf '[network]\nlisten = %s\nkey_file = %s\nbackoff_max = 500ms\npeer_timeout = 2s\netcd_ttl = 2s\n' "${address[$1]}" "$dir/key" >"$1/conf"
  printf '%s\n' "${@:2}" >>"$1/conf"
  "$RDT_BUILD_DIR/rdtd" --config "$1/conf" --socket "$dir/$1/s" --state-dir "$dir/$1" --backend-dir "$RDT_BUILD_DIR/backends" \
    2>>"$1/log" &
  pid[$1]=$!
  until_true ctl "$1" ping -q --timeout 1s || cat "$1/log"
}
stop() { kill "${pid[$1]}"; wait "${pid[$1]}" || bad "$1 ended with $?"; unset "pid[$1]"; }
helper() { pgrep -P "${pid[$1]}" rdtd-etcd; }
# link NODE OTHER SOURCE STATE: whether NODE lists OTHER so
link() { ctl "$1" nodes | says -E "${address[$2]//./\\.}  *[0-9a-f-]+  *$3  *.*  *$4 "; }
unlisted() { ! link "$1" "$2" etcd '.*'; }
metric() { ctl "$1" metrics | says -E "^rdtd_directory_etcd_$2"; }
up() { metric "$1" 'up 1'; }
down() { metric "$1" 'up 0'; }
check() { # NODE STATUS: of the doctor's check
  ctl "$1" doctor --json >"$1/checks"
  tr -d '\n ' <"$1/checks" | says "\"id\":\"RDT045\",\"name\":\"etcd\",\"status\":\"$2\""
}
comes_and_goes() { # NODE: the others learn of a change
  start "$1" "etcd_endpoints = $endpoints"
  for other in a b; do until_true link $other "$1" etcd up; done
  until_true link "$1" a etcd up
  stop "$1"
  for other in a b; do until_true unlisted $other "$1"; done
}

etcd_ctl put /rdtd/names/0@/w old >/dev/null || bad "etcd cannot be written" # an earlier version had such keys
for node in a b; do start $node "etcd_endpoints = $endpoints"; done
until_true link a b etcd up
until_true link b a etcd up
ctl a nodes --json | says '"source": "etcd"' || bad "nodes --json: $(ctl a nodes --json)"
for node in a b; do until_true check $node ok; done
[[ $(etcd_ctl get --prefix /rdtd/nodes/ --keys-only | grep -c nodes) == 2 ]] || bad "etcd has $(etcd_ctl get --prefix /rdtd/)"
comes_and_goes c

# ---- a member is killed, frozen, cut off ----

for m in 1 2 3; do # each in turn, so that it was that of each node
  kill_member $m
  comes_and_goes c
  for node in a b; do until_true up $node; done
  member $m
  until_true etcdctl --endpoints http://10.9.0.$m:2379 endpoint health
  kill -STOP "${pid[m$m]}"
  comes_and_goes c
  for node in a b; do until_true up $node; done
  kill -CONT "${pid[m$m]}"
  until_true etcdctl --endpoints http://10.9.0.$m:2379 endpoint health
done
ip link set port1 down
comes_and_goes c
ip link set port1 up
until_true etcd_ctl endpoint health --cluster
metric a 'reconnects_total ([2-9]|[0-9]{2,})' || bad "no metric of another endpoint"
link a b etcd up || bad "a lost b while members were away"

# ---- all of them are frozen, then killed; what a node has missed is compacted ----

for m in 1 2 3; do kill -STOP "${pid[m$m]}"; done
for node in a b; do until_true down $node; until_true check $node warn; done
link a b etcd up || bad "a lost b while etcd is frozen"
{ printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}}'; head -c 100 /dev/zero; } >w.safetensors
ctl a put -q w.safetensors --detached --ttl 10m --publish w >/dev/null || bad "a name needs etcd"
ctl b fetch -q --name w -o got.safetensors --timeout 20s || bad "b does not find a name of a"
if ctl b put -q w.safetensors --publish w 2>why; then bad "two nodes publish one name"; fi
grep -q EXISTS why || bad "$(cat why)"
ctl a nodes | says 'etcd cannot be read: etcd at http://10.9.0' || bad "nodes does not say that etcd is away: $(ctl a nodes)"
for m in 1 2 3; do kill -CONT "${pid[m$m]}"; done
for node in a b; do until_true up $node; until_true check $node ok; done
link a b etcd up || bad "a lost b when etcd went on"

for m in 1 2 3; do kill_member $m; done
for node in a b; do until_true down $node; done
start c "etcd_endpoints = $endpoints" # before etcd
until_true check c warn
for m in 1 2 3; do member $m; done
until_true link a c etcd up
until_true link c a etcd up
link a b etcd up || bad "a lost b while etcd was restarted"
stop c
for other in a b; do until_true unlisted $other c; done

# b alone is away from etcd while others change it, and their changes are compacted.
b_helper=$(helper b)
kill -STOP "$b_helper"
start c "etcd_endpoints = $endpoints"
until_true link a c etcd up
etcd_ctl put /rdtd/nodes/00 x >/dev/null && etcd_ctl del /rdtd/nodes/00 >/dev/null || bad "etcd cannot be written"
revision=$(etcd_ctl get /rdtd -w json | grep -o '"revision":[0-9]*' | cut -d: -f2)
etcd_ctl compact "$revision" >/dev/null || bad "etcd cannot be compacted"
kill -CONT "$b_helper"
until_true link b c etcd up
until_true up b

# ---- the lease of a frozen node expires ----

kill -STOP "${pid[c]}" "$(helper c)"
gone() { [[ $(etcd_ctl get --prefix /rdtd/nodes/ --keys-only | grep -c nodes) == "$1" ]]; }
until_true gone 2
until_true unlisted a c
kill -CONT "${pid[c]}" "$(helper c)"
until_true link a c etcd up
until_true link c a etcd up
until_true metric c 'leases_lost_total [1-9]'

# Somebody deletes the key.
etcd_ctl del --prefix /rdtd/nodes/ >/dev/null
until_true gone 3

# ---- a key that is not rdtd's; rdtd-etcd is killed; a node that is killed ----

etcd_ctl put /rdtd/nodes/mine x >/dev/null
until_true check a warn
ctl a nodes | says 'key /rdtd/nodes/mine' || bad "the strange key is not named: $(ctl a nodes)"
link a c etcd up || bad "a strange key ends what was known"
etcd_ctl del /rdtd/nodes/mine >/dev/null
until_true check a ok
kill -9 "$(helper a)"
until_true metric a 'programs_total 2'
until_true up a
link a c etcd up || bad "a lost c with rdtd-etcd"
kill -9 "${pid[c]}"
wait "${pid[c]}" 2>/dev/null
until_true gone 2
until_true unlisted a c

# ---- etcd is built anew, without data ----

for m in 1 2 3; do kill_member $m; rm -rf etcd$m; done
for m in 1 2 3; do member $m; done
until_true etcd_ctl endpoint health --cluster
until_true gone 2
for node in a b; do until_true up $node; done
link a b etcd up || bad "a lost b when etcd was built anew"
comes_and_goes c

# ---- a user and its password; endpoints that are taken away ----

etcd_ctl user add root:secret >/dev/null && etcd_ctl user grant-role root root >/dev/null && etcd_ctl auth enable >/dev/null ||
  bad "no users"
until_true check a warn
start d "etcd_endpoints = $endpoints" 'etcd_user = root' "etcd_password_file = $dir/password" # which is not there yet
grep -qF "$dir/password: No such file or directory: this node uses etcd when it is there" d/log || bad "not said: $(cat d/log)"
missing() { ctl d nodes | says "the password in $dir/password cannot be read: No such file"; }
until_true missing
echo wrong >password
refused() { ctl d nodes | says 'user root is refused'; }
until_true refused
echo secret >password
until_true up d
etcdctl --endpoints "$endpoints" --user root:secret auth disable >/dev/null || bad "users cannot be switched off"
sed -i /etcd_/d d/conf
ctl d reload >/dev/null || bad "no reload"
until_true unlisted d a
until_true gone 2
for node in a b; do until_true up $node; done

# ---- TLS ----

kill "${pid[d]}"
wait "${pid[d]}"
for name in ca other; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $name.key -out $name.pem -subj /CN=$name 2>/dev/null
done
for name in server client; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $name.key -out $name.csr -subj /O=rdtd 2>/dev/null
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem \
    -extfile <(echo subjectAltName=IP:127.0.0.1) 2>/dev/null || bad "no certificate"
done
etcd --data-dir etcd-tls --listen-client-urls https://127.0.0.1:2379 --advertise-client-urls https://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
  --initial-cluster default=http://127.0.0.1:2380 --cert-file server.pem --key-file server.key --client-cert-auth \
  --trusted-ca-file ca.pem >etcd-tls.log 2>&1 &
pid[tls]=$!
mv client.pem late.pem
start d 'etcd_endpoints = https://127.0.0.1:2379' "etcd_ca = $dir/ca.pem" "etcd_cert = $dir/client.pem" "etcd_key = $dir/client.key"
grep -qF "$dir/client.pem: No such file or directory: this node uses etcd when it is there" d/log || bad "not said: $(cat d/log)"
lacks_client() { ctl d nodes | says "etcd cannot be read: .*client.pem"; }
until_true lacks_client
mv late.pem client.pem
until_true up d
stop d
start d 'etcd_endpoints = https://127.0.0.1:2379' "etcd_ca = $dir/other.pem" "etcd_cert = $dir/client.pem" "etcd_key = $dir/client.key"
says_tls() { ctl d nodes | says -i 'certificate'; }
until_true says_tls
down d || bad "an etcd with a strange certificate is believed"
sed -i "s/other.pem/ca.pem/" d/conf
ctl d reload >/dev/null || bad "no reload"
until_true up d
sed -i '/etcd_cert/d; /etcd_key/d' d/conf
ctl d reload >/dev/null || bad "no reload"
until_true down d

for node in a b d; do stop $node; done
grep -l 'AddressSanitizer\|runtime error' ./*/log && bad "a sanitizer has found something"
((failures == 0))
