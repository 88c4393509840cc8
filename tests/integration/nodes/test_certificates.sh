#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Certificates between nodes: nodes with certificates of one authority exchange objects; every other end is refused, with a sentence
# that says why: another authority, an expired or revoked certificate, a name that is not allowed, that is not the host's or
# another node's, no certificate, an earlier TLS, the key where only certificates count. Reloading renews certificates
# without a failed transfer, ends the link of a revoked node, and takes nodes from the key to certificates one by one.
# seconds: 200
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
command -v openssl >/dev/null || { echo "openssl is not installed"; exit 77; }
dir=$(mktemp -d)
declare -A pid
# shellcheck disable=SC2317
cleanup() { { kill -CONT "${pid[@]}"; kill "${pid[@]}" $(jobs -p); wait; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
cd "$dir" || exit 1
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1/s" "${@:2}"; }

# ---- an authority ----

# authority NAME
authority() {
  mkdir "$1"
  : >"$1/index.txt"
  echo 1000 >"$1/serial"
  cat >"$1/conf" <<CONF
[ca]
default_ca = this
[this]
database = $1/index.txt
serial = $1/serial
new_certs_dir = $1
certificate = $1/ca.pem
private_key = $1/ca.key
default_md = sha256
default_crl_days = 30
policy = any
unique_subject = no
[any]
commonName = supplied
CONF
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1/ca.key" -out "$1/ca.pem" -days 30 \
    -subj "/CN=$1" -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2>"$1/log" ||
    bad "$(cat "$1/log")"
}
# certificate AUTHORITY FILE NAMES [OPTION ...]: FILE.pem and FILE.key
certificate() {
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3" >ext
  { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$2.new" -out csr -subj "/CN=$2" &&
    openssl ca -batch -notext -config "$1/conf" -in csr -extfile ext -days 20 "${@:4}" -out "$2.pem"; } >log 2>&1 || bad "$(cat log)"
  chmod 600 "$2.new"
  mv "$2.new" "$2.key"
}
authority ca
authority other
certificate ca a DNS:a.example,URI:spiffe://example.org/rdtd/a
certificate ca b URI:spiffe://example.org/rdtd/b
certificate ca c DNS:c.example.net
certificate ca expired URI:spiffe://example.org/rdtd/e -startdate 20200101000000Z -enddate 20200102000000Z
certificate ca early DNS:a.example,URI:spiffe://example.org/rdtd/a -startdate 21000101000000Z -enddate 21000201000000Z
certificate ca elsewhere IP:192.0.2.7,URI:spiffe://example.org/rdtd/x
certificate ca uuid URI:spiffe://example.org/rdtd/u,URI:urn:uuid:00000000-0000-4000-8000-000000000001
certificate other o URI:spiffe://example.org/rdtd/b
openssl ca -config ca/conf -gencrl -out crl.pem 2>/dev/null || bad "no list of revoked certificates"
head -c 32 /dev/urandom | base64 >key
chmod 600 key
printf '\004\000\000\000\000\000\000\000{}  ' >empty.safetensors

# ---- daemons ----

port=$((10000 + RANDOM % 9900)) # below those of other tests
address() { echo "127.0.0.1:$((port + $1))"; }
# start NODE NUMBER [KEY=VALUE ...]: with these keys of [network]
start() {
  mkdir -p "$1"
  printf '[network]\nlisten = %s\n' "$(address "$2")" >"$1/conf"
  printf '%s\n' "${@:3}" >>"$1/conf"
  serve "$dir/$1/s" "$1/log" --config "$1/conf" --state-dir "$dir/$1"
  pid[$1]=$daemon
}
stop() { kill "${pid[$1]}"; wait "${pid[$1]}" || bad "$1 ended with $?"; unset "pid[$1]"; }
certs() { printf '%s\n' "peer_cert = $dir/$1.pem" "peer_key = $dir/$1.key" "peer_ca = $dir/${2:-ca}/ca.pem"; }
readarray -t with_a < <(certs a)
start a 1 "${with_a[@]}" "peer_allow = spiffe://example.org/rdtd/*, *.example" "peer_crl = $dir/crl.pem"
ctl a put -q empty.safetensors --id it --detached >ref || bad "no put"
ref=$(tail -n 1 ref)
head -c 3000000 /dev/urandom >raw
{ printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[3000000],"data_offsets":[0,3000000]}}'; cat raw; } >large.safetensors
ctl a put -q large.safetensors --id large --detached >large_ref || bad "no put"
large=$(tail -n 1 large_ref)
# fetches NODE [REF]
fetches() { ctl "$1" fetch -q "${2:-$ref}" -o "$1/got${2:+.safetensors}" --timeout 20s; }

readarray -t with_b < <(certs b)
start b 2 "${with_b[@]}"
fetches b "$large" || bad "two nodes with certificates do not exchange objects: $(cat b/log)"
cmp <(tail -c 3000000 b/got.safetensors) raw || bad "other bytes"
ctl b peers | grep -q 'spiffe://example.org/rdtd/a' || bad "peers does not say who the other node is: $(ctl b peers)"
ctl a peers | grep -q 'spiffe://example.org/rdtd/b' || bad "peers does not say who the other node is: $(ctl a peers)"
ctl a doctor --json >doctor
grep -Eq 'certificate in peer_cert is valid for (19|20) days' doctor || bad "the doctor: $(ctl a doctor)"

# refused NODE TEXT KEY=VALUE ...: such a node fetches nothing from a, and says why. (The log of a has one line a second at most.)
refused() {
  start "$1" 3 "${@:3}"
  if ctl "$1" fetch -q "$ref" -o "$1/got" --timeout 3s 2>"$1/why"; then bad "$1 is not refused"; fi
  grep -qF -- "$2" "$1/why" || bad "$1 does not say '$2': $(cat "$1/why" "$1/log")"
  stop "$1"
}
readarray -t with_c < <(certs c)
refused c 'the certificate of the other end is of c.example.net, which peer_allow does not allow' "${with_c[@]}"
readarray -t with_o < <(certs o other)
refused o 'the certificate of the other end is not accepted: self-signed certificate in certificate chain' "${with_o[@]}"
# It accepts a, and a does not accept it.
cat ca/ca.pem other/ca.pem >both.pem
refused o2 "does not accept this node's certificate" "peer_cert = $dir/o.pem" \
  "peer_key = $dir/o.key" "peer_ca = $dir/both.pem"
refused keyed 'the other end has another key, or is not rdtd' "key_file = $dir/key"
readarray -t with_uuid < <(certs uuid)
refused uuid 'is of node 00000000000040008000000000000001, and it claims to be' "${with_uuid[@]}"

# An end that is no rdtd.
# attack ALERT OPTION ...
attack() {
  timeout 20 openssl s_client -connect "$(address 1)" -quiet "${@:2}" </dev/null >attack 2>&1
  grep -q "alert $1" attack || bad "an attack with ${*:2} is not answered by '$1': $(cat attack)"
}
attack 'certificate required' -tls1_3
attack 'certificate expired' -tls1_3 -cert expired.pem -key expired.key
attack 'unknown ca' -tls1_3 -cert o.pem -key o.key
attack 'protocol version' -tls1_2 -cert b.pem -key b.key
attack 'certificate required' -tls1_3 -psk "$(openssl rand -hex 32)" -psk_identity rdtd

# The server's own name: b dials an address that is not in the certificate.
readarray -t with_elsewhere < <(certs elsewhere)
start elsewhere 4 "${with_elsewhere[@]}"
ctl elsewhere put -q empty.safetensors --id it --detached >ref4
if ctl b fetch -q "$(tail -n 1 ref4)" -o b/got --timeout 3s 2>why; then bad "a certificate of another address is accepted"; fi
grep -qF 'the certificate of the node at 127.0.0.1 names other addresses' why || bad "$(cat why)"
stop elsewhere

# ---- a daemon looks at its own files ----

# wrong TEXT KEY=VALUE ...
wrong() {
  printf '[network]\n' >wrong.conf
  printf '%s\n' "${@:2}" >>wrong.conf
  "$RDT_BUILD_DIR/rdtd" --config wrong.conf --state-dir '' --backend-dir "$RDT_BUILD_DIR/backends" --check-config >out 2>&1 && bad "accepted: ${*:2}"
  grep -qF -- "$1" out || bad "not said: $1: $(cat out)"
}
wrong 'certificates need all of peer_cert, peer_key and peer_ca' "peer_cert = $dir/a.pem" "peer_ca = $dir/ca/ca.pem"
wrong 'is not the key of the certificate in peer_cert' "peer_cert = $dir/a.pem" "peer_key = $dir/b.key" "peer_ca = $dir/ca/ca.pem"
wrong 'certificate has expired' "peer_cert = $dir/expired.pem" "peer_key = $dir/expired.key" "peer_ca = $dir/ca/ca.pem"
wrong 'is not accepted by peer_ca' "peer_cert = $dir/a.pem" "peer_key = $dir/a.key" "peer_ca = $dir/other/ca.pem"
wrong 'has no certificate in PEM format' "peer_cert = $dir/key" "peer_key = $dir/a.key" "peer_ca = $dir/ca/ca.pem"
wrong 'has no list of revoked certificates' "${with_a[@]}" "peer_crl = $dir/a.pem"
cp a.key open.key
chmod 644 open.key
wrong 'is open to others (mode 0644)' "peer_cert = $dir/a.pem" "peer_key = $dir/open.key" "peer_ca = $dir/ca/ca.pem"

# ---- a clock that has not been set yet ----

# The daemon serves its own clients; the next files, or the right time, bring the other nodes.
start early 3 "peer_cert = $dir/early.pem" "peer_key = $dir/early.key" "peer_ca = $dir/ca/ca.pem"
grep -qF "peer_cert $dir/early.pem, or what peer_ca and peer_crl have for it, is not valid yet" early/log || bad "not said: $(cat early/log)"
"$RDT_BUILD_DIR/rdtd" --config early/conf --state-dir '' --backend-dir "$RDT_BUILD_DIR/backends" --check-config >out 2>&1 ||
  bad "--check-config refuses a certificate that is not valid yet: $(cat out)"
ctl early fetch -q "$ref" -o early/got --timeout 2s 2>why && bad "a node whose certificate is not valid yet is accepted"
cp a.pem early.pem
cp a.key early.key
ctl early reload >/dev/null || bad "no reload"
until_true fetches early
stop early

# ---- files that are not there yet, as those of a volume that is mounted late ----

# The daemon serves its own clients, and the other nodes when all files have come.
for missing in pem key; do
  cp a.pem late.pem
  cp a.key late.key
  mv late.$missing away
  start late 3 "peer_cert = $dir/late.pem" "peer_key = $dir/late.key" "peer_ca = $dir/ca/ca.pem"
  grep -qF "$dir/late.$missing: No such file or directory: this node and others reach each other when it is there" late/log ||
    bad "not said: $(cat late/log)"
  "$RDT_BUILD_DIR/rdtd" --config late/conf --state-dir '' --backend-dir "$RDT_BUILD_DIR/backends" --check-config >out 2>&1 ||
    bad "--check-config refuses a file that may come: $(cat out)"
  grep -qF "late.$missing: No such file" out || bad "--check-config says nothing of a missing file: $(cat out)"
  ctl late fetch -q "$ref" -o late/got --timeout 2s 2>why && bad "a node without late.$missing is accepted"
  grep -qF 'this node waits for a missing file' why || bad "$(cat why)"
  ctl late put -q empty.safetensors --id it --detached >late_ref || bad "no put without late.$missing"
  ctl b fetch -q "$(tail -n 1 late_ref)" -o b/got --timeout 2s 2>why && bad "a node without late.$missing accepts others"
  echo broken >late.$missing
  chmod 600 late.$missing
  until_true grep -qF 'in PEM format' late/log
  mv away late.$missing
  until_true grep -qF "the key and certificate files of the peer link are there now" late/log
  until_true fetches late
  stop late
  rm -r late
done
start late 3 "key_file = $dir/late.key"
rm late.key && stop late # it is read no more
rm late/log
start late 3 "key_file = $dir/late.key"
stop late # while it waits
rm -r late

# ---- renewal, while b fetches all the time ----

: >rounds
(
  while [[ ! -e enough ]]; do fetches b "$large" >>fetching 2>&1 || echo failed >>fetching; echo >>rounds; done
) &
loop=$!
rounds() { wc -l <rounds; }
more() { (($(rounds) > $1)); }
for ((i = 0; i < 5; i++)); do
  until_true more "$(rounds)"
  certificate ca a DNS:a.example,URI:spiffe://example.org/rdtd/a
  certificate ca b URI:spiffe://example.org/rdtd/b
  ctl a reload | grep -q 'peer_cert' || bad "a does not say that it has new certificates"
  ctl b reload | grep -q 'peer_cert' || bad "b does not say that it has new certificates"
done
touch enough
wait "$loop"
[[ ! -s fetching ]] || bad "a renewal cost a transfer: $(head -n 3 fetching)"
# A new link uses the new files.
stop b
start b 2 "${with_b[@]}"
fetches b || bad "no fetch with renewed certificates: $(tail -n 3 a/log b/log)"
cp a.pem good.pem
cp expired.pem a.pem
ctl a reload 2>why && bad "an expired certificate was taken"
fetches b || bad "a refused reload has changed something"
cp good.pem a.pem

# ---- b is revoked ----

{ openssl ca -config ca/conf -revoke b.pem && openssl ca -config ca/conf -gencrl -out crl.pem; } 2>log || bad "no revocation: $(cat log)"
ctl a reload >/dev/null || bad "no reload"
until_true grep -qF 'is no longer accepted: certificate revoked' a/log
shut_out() { ! ctl b fetch -q "$ref" -o b/got --timeout 3s 2>why && grep -qF "does not accept this node's certificate" why; }
until_true shut_out || cat why
stop b
stop a

# ---- from the key to certificates ----

certificate ca b URI:spiffe://example.org/rdtd/b
readarray -t with_b < <(certs b)
start a 1 "key_file = $dir/key"
start b 2 "key_file = $dir/key"
ctl a put -q empty.safetensors --id it --detached >ref || bad "no put"
ref=$(tail -n 1 ref)
fetches b || bad "no fetch by key"
identity() { ctl b peers --json | grep -q "\"identity\": \"$1\""; }
identity '' || bad "a link by key has an identity"
printf '%s\n' "${with_a[@]}" >>a/conf
ctl a reload | grep -q peer_cert || bad "certificates are not taken by a reload"
fetches b || bad "no fetch while one node has both"
printf '%s\n' "${with_b[@]}" >>b/conf
ctl b reload | grep -q peer_cert || bad "certificates are not taken by a reload"
ctl b doctor --json >doctor
grep -q 'need no certificate' doctor || bad "the doctor does not mind the key beside certificates"
for node in a b; do
  sed -i '/key_file/d' $node/conf
  ctl $node reload | grep -q key_file || bad "the key is not given up by a reload"
  fetches b || bad "no fetch while $node gives up the key"
done
stop b
start b 2 "${with_b[@]}"
fetches b || bad "no fetch by certificates after the key: $(tail -n 3 a/log b/log)"
identity spiffe://example.org/rdtd/a || bad "the link does not use certificates: $(ctl b peers --json)"
refused late 'the other end has another key, or is not rdtd' "key_file = $dir/key"

((failures == 0))
