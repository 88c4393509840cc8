#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh [FILE.safetensors]: two daemons, one file. Actor A puts a model's weights into the daemon of node a, actor B
# fetches them through the daemon of node b, and both files must be the same. As root each node is a network namespace of
# its own, joined by a veth pair; else 127.0.0.1 and 127.0.0.2. RDT_BUILD_DIR says what to run (build/release); FILE may
# also come from the environment, and DEMO_MIB, the size of the file that is made without it. Ends with "demo: OK", or names
# the step that failed and shows the daemons' logs. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${RDT_BUILD_DIR:-$PWD/build/release}
file=${1:-${FILE:-}}
generator=$build/tests/demo/make_safetensors
mebibytes=${DEMO_MIB:-256}
[[ -z $file || -r $file ]] || { echo "demo: cannot read $file"; exit 1; }

dir=$(mktemp -d "${TMPDIR:-/tmp}/rdt-demo.XXXXXX")
step=start
pids=()
namespaces=()
finished=
netns_mounted=

cleanup() {
  local pid ns log
  trap '' INT TERM HUP
  trap - EXIT
  set +e
  {
    for pid in "${pids[@]}"; do kill -KILL "$pid"; done
    wait
  } 2>/dev/null
  if [[ -z $finished ]]; then
    for log in "$dir"/*.log; do
      [[ -s $log ]] && { echo "--- the last lines of ${log##*/}"; tail -n 40 "$log"; }
    done
    echo "demo: FAILED: $step"
  fi
  for ns in "${namespaces[@]}"; do ip netns del "$ns"; done
  [[ -z $netns_mounted ]] || umount /run/netns # `ip netns add` mounts it where it is not, and leaves it so
  rm -rf "$dir"
  [[ -n $finished ]] || exit 1
}
trap cleanup EXIT
trap 'step+=" (interrupted)"; exit 130' INT TERM HUP

say() { step=$*; printf '\n== %s\n' "$*"; }
show() { printf '$ rdtctl %s\n' "$*"; "$build/rdtctl" "$@" --socket "$dir/b.sock"; }
fail() { echo "$*"; exit 1; }

# until_deadline SECONDS COMMAND ...: repeats the command until it succeeds.
until_deadline() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.05
  done
}

# ---- two nodes ----

in_a=() in_b=()
address_a=127.0.0.1:17171 address_b=127.0.0.2:17171
carrier() { [[ $(ip -n "$1" -o link show "$2") == *'state UP'* ]]; } # a device that is not running is none for UCX
make_namespaces() {
  local a=rdtdemo-a-$$ b=rdtdemo-b-$$
  command -v ip >/dev/null && ((EUID == 0)) || return 1
  grep -q ' /run/netns ' /proc/self/mounts || netns_mounted=yes
  ip netns add "$a" 2>/dev/null || { grep -q ' /run/netns ' /proc/self/mounts || netns_mounted=; return 1; }
  namespaces=("$a")
  ip netns add "$b" 2>/dev/null || return 1
  namespaces+=("$b")
  ip link add rdta netns "$a" type veth peer name rdtb netns "$b" 2>/dev/null || return 1
  ip -n "$a" addr add 10.231.0.1/30 dev rdta && ip -n "$b" addr add 10.231.0.2/30 dev rdtb &&
    ip -n "$a" link set rdta up && ip -n "$b" link set rdtb up &&
    ip -n "$a" link set lo up && ip -n "$b" link set lo up || return 1
  until_deadline 5 carrier "$a" rdta && until_deadline 5 carrier "$b" rdtb || return 1
  ip netns exec "$a" true 2>/dev/null || return 1 # it also mounts the namespace's own /sys, where UCX looks for interfaces
  in_a=(ip netns exec "$a") in_b=(ip netns exec "$b")
  address_a=10.231.0.1:7171 address_b=10.231.0.2:7171
}

if make_namespaces; then
  say 'Two nodes: network namespaces joined by a veth pair, 10.231.0.1 and 10.231.0.2'
else
  say "Two nodes: $address_a and $address_b (namespaces need root)"
fi

say 'A key for both daemons, and a file that names the nodes'
(umask 077 && head -c 32 /dev/urandom | base64 >"$dir/key")
printf '%s\n' "a $address_a" "b $address_b" | tee "$dir/nodes"

start_daemon() { # NAME ADDRESS PREFIX ...
  local name=$1 address=$2
  shift 2
  mkdir "$dir/$name"
  "$@" "$build/rdtd" --socket "$dir/$name.sock" --listen "$address" --key-file "$dir/key" --state-dir "$dir/$name" \
    --backend-dir "$build/backends" --trusted-network yes --nodes "$dir/nodes" </dev/null >"$dir/$name.log" 2>&1 &
  pids+=($!)
}
answers() { "$build/rdtctl" ping -q --timeout 2s --socket "$dir/$1.sock" 2>/dev/null; }
ready() { answers "$1" || ! kill -0 "$2" 2>/dev/null; }

say 'One daemon on each node'
start_daemon a "$address_a" "${in_a[@]}"
daemon_a=$!
start_daemon b "$address_b" "${in_b[@]}"
daemon_b=$!
until_deadline 10 ready a "$daemon_a" && answers a || fail 'daemon a does not answer'
until_deadline 10 ready b "$daemon_b" && answers b || fail 'daemon b does not answer'
echo "rdtd runs as pid $daemon_a and $daemon_b"

# ---- a file ----

if [[ -z $file ]]; then
  say "A file like a model's weights: $mebibytes MiB of several dtypes"
  file=$dir/model.safetensors
  if [[ ! -x $generator ]]; then
    generator=$dir/make_safetensors
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -o "$generator" tests/demo/make_safetensors.c
  fi
  "$generator" "$file" "$mebibytes"
else
  say "Your file: $file"
fi
ls -lh "$file" | awk '{print $5, $9}'

say 'Actor A puts it on node a, holds the object while it runs, and prints its ref for others'
exec {refs}< <(exec "$build/rdtctl" put "$file" --id weights --socket "$dir/a.sock" 2>>"$dir/actor-a.log")
actor=$!
pids+=("$actor")
read -r -t 60 -u "$refs" ref || { cat "$dir/actor-a.log"; fail 'no ref came'; }
echo "$ref"

# ---- the point ----

say 'Actor B fetches it on node b: the daemons find a path and move the bytes'
show fetch "$ref" -o "$dir/out.safetensors" --timeout 60s

say 'Both files are the same'
cmp "$file" "$dir/out.safetensors"
cksum "$file" "$dir/out.safetensors" | sed "s|$dir/||"

say 'What node b tells about it'
show status
show peers
show transfers
transfer=$("$build/rdtctl" transfers --json --socket "$dir/b.sock" | sed -n 's/^ *"transfer": \([0-9]*\),*$/\1/p' | tail -n 1)
show explain "$transfer"

say 'What node a tells: the object, and what holds it'
"$build/rdtctl" objects --socket "$dir/a.sock"
"$build/rdtctl" stat weights --socket "$dir/a.sock"

# ---- the end ----

ended() { # PID NAME: it has ended, and well
  until_deadline 10 eval "! kill -0 $1 2>/dev/null" || fail "$2 does not end"
  wait "$1" || fail "$2 ended with status $?"
}
no_objects() { "$build/rdtctl" objects --json --socket "$dir/a.sock" | grep -q '"objects": \[\]'; }

say 'Actor A ends, and the object ends with it'
kill -TERM "$actor"
ended "$actor" 'actor A'
until_deadline 5 no_objects || { "$build/rdtctl" stat weights --socket "$dir/a.sock"; fail 'the object is still there'; }
"$build/rdtctl" objects --socket "$dir/a.sock"

say 'Both daemons end'
kill -TERM "$daemon_a" "$daemon_b"
ended "$daemon_a" 'daemon a'
ended "$daemon_b" 'daemon b'
echo "both with status 0"

finished=yes
printf '\ndemo: OK (%d s)\n' "$SECONDS"
