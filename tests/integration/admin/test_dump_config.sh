#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The output of --dump-config, with the sections of backends, reads back as the same configuration. So does the template of
# rdtd.conf, which holds the defaults. The source of rdtd.conf(5) is a correct manual page.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rdtd=(env LC_ALL=C "$RDT_BUILD_DIR/rdtd" --log-level error)
fail() { echo "$*"; exit 1; }

"${rdtd[@]}" --config= --backend-dir "$RDT_BUILD_DIR/backends" --max-clients 7 --set ucx.spin_polls=77 --set ucx.tls=tcp \
  --dump-config >"$dir/first"
grep -qx 'max_clients = 7' "$dir/first" || fail "max_clients is not in the dump"
grep -qx 'spin_polls = 77' "$dir/first" || fail "a backend's key is not in the dump"
(($(grep -cx '\[ucx\]' "$dir/first") == 1)) || fail "a section is there twice"
"${rdtd[@]}" --config "$dir/first" --check-config >/dev/null || fail "the dump is not valid"
"${rdtd[@]}" --config "$dir/first" --dump-config >"$dir/second"
diff -u "$dir/first" "$dir/second" || fail "it does not read back as the same"
sed 's/^spin_polls/spin_pools/' "$dir/first" >"$dir/wrong"
! "${rdtd[@]}" --config "$dir/wrong" --check-config >"$dir/out" 2>&1 || fail "an unknown key of a backend is accepted"
grep -q spin_pools "$dir/out" || fail "the error does not name the key: $(cat "$dir/out")"

"${rdtd[@]}" --dump-config=template >"$dir/template"
cmp "$dir/template" "$RDT_BUILD_DIR/rdtd.conf" || fail "the built rdtd.conf is not the template"
"${rdtd[@]}" --config "$dir/template" --check-config >/dev/null || fail "the template is not valid"
sed 's/^#\([a-z_]* =\)/\1/' "$dir/template" >"$dir/filled"
"${rdtd[@]}" --config "$dir/filled" --check-config >/dev/null || fail "the template with every key set is not valid"
if [[ -e $RDT_BUILD_DIR/man/rdtd.conf.5 ]] && command -v mandoc >/dev/null; then
  said=$(mandoc -T lint -W warning "$RDT_BUILD_DIR/man/rdtd.conf.5" 2>&1) || fail "rdtd.conf(5): $said"
else
  echo "not checked: rdtd.conf(5), without scdoc or mandoc"
fi

# --check-config finds what a start would refuse.
checked() { # PATTERN FLAGS...: refused with that sentence, and status 2
  local pattern=$1 got=0
  shift
  "${rdtd[@]}" --config= --backend-dir "$RDT_BUILD_DIR/backends" --check-config "$@" >"$dir/out" 2>&1 || got=$?
  [[ $got == 2 ]] && grep -q "$pattern" "$dir/out" || fail "$*: status $got: $(cat "$dir/out")"
}
(umask 077; echo short >"$dir/short"; head -c 32 /dev/urandom | base64 >"$dir/key"; cp "$dir/key" "$dir/open")
chmod 644 "$dir/open"
checked 'at least 16' --key-file "$dir/short"
checked 'others' --key-file "$dir/open"
may_come() { # SENTENCE FLAGS...: the network, and the files of the key, may be complete later
  "$RDT_BUILD_DIR/rdtd" --config= --backend-dir "$RDT_BUILD_DIR/backends" --check-config --key-file "$dir/key" "${@:2}" >"$dir/out" 2>&1 ||
    fail "a network that may come later is refused: $(cat "$dir/out")"
  grep -qF "$1" "$dir/out" || fail "nothing says \"$1\": $(cat "$dir/out")"
}
may_come 'listen = 192.0.2.77:7171: no interface has this address' --listen 192.0.2.77:7171
may_come "key file $dir/nokey: No such file or directory: this node and others reach each other when it is there" --key-file "$dir/nokey"
may_come 'no network interface "nosuch0" that is up' --interfaces lo,nosuch0
checked "state_dir: cannot create $dir/no/such" --state-dir "$dir/no/such"
checked "state_dir: cannot write in $dir/key: Not a directory" --state-dir "$dir/key"
mkdir "$dir/state"
echo nonsense >"$dir/state/node_uuid"
checked 'does not contain 32 hex digits' --state-dir "$dir/state"
checked 'ucx.on_slow: .*on_slow: it was removed: leave tcp out of tls' --set ucx.on_slow=refuse
! grep -q 'listens on' "$dir/out" || fail "the check says that something listens"
"${rdtd[@]}" --config= --backend-dir "$RDT_BUILD_DIR/backends" --check-config --key-file "$dir/key" --listen 127.0.0.1:7171 --interfaces lo \
  --state-dir "$dir/new" >/dev/null || fail "a good configuration is refused"

# All faults of the backends' sections are printed.
checked '3 faults' --set ucx.nothing=1 --set stream.neither=2 --set nobackend.key=3
for what in ucx.nothing stream.neither nobackend.key; do grep -q "$what" "$dir/out" || fail "no fault of $what: $(cat "$dir/out")"; done
checked max_clients --set daemon.max_clients=none --set ucx.nothing=1
grep -q ucx.nothing "$dir/out" || fail "a fault of the daemon's own keys hides those of a backend: $(cat "$dir/out")"

# Root may read what the daemon's user, who owns state_dir, may not.
if ((EUID == 0)); then
  mkdir "$dir/owned"
  chown nobody "$dir/owned"
  chmod 755 "$dir"
  checked "key_file = $dir/key: the daemon's user nobody, who owns state_dir, cannot read it: Permission denied" \
    --key-file "$dir/key" --state-dir "$dir/owned"
  chown nobody "$dir/key"
  "${rdtd[@]}" --config= --backend-dir "$RDT_BUILD_DIR/backends" --check-config --key-file "$dir/key" --state-dir "$dir/owned" >"$dir/out" 2>&1 ||
    fail "a key of the daemon's user is refused: $(cat "$dir/out")"
fi
