#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the transport of rdt-backend(7) against an installation, with nothing of this tree. It passes rdt-check-backend,
# two running daemons load it, and it moves a file between them.
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../../.."
tmp=$(mktemp -d)
pids=()
# shellcheck disable=SC2317
cleanup() {
  for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
  rm -rf "$tmp"
}
trap cleanup EXIT
fail() { echo "$*"; exit 1; }

. tests/support/code_blocks.sh
mkdir "$tmp/blocks"
blocks backends/rdt-backend.7.scd "$tmp/blocks" >/dev/null
cp "$(grep -lx 'transport rdt_dir.c' "$tmp"/blocks/*.kind | sed 's/\.kind$//')" "$tmp/rdt_dir.c"
diff -u tests/examples/rdt_dir.c "$tmp/rdt_dir.c" || fail "tests/examples/rdt_dir.c is not the transport of rdt-backend(7)"

make --no-print-directory install DESTDIR="$tmp/root" PREFIX=/usr/local >"$tmp/log" ||
  { cat "$tmp/log"; fail "make install failed"; }
export PKG_CONFIG_PATH=$tmp/root/usr/local/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tmp/root
bin=$tmp/root/usr/local/bin
# Away from the tree, so that no header of it is found.
# shellcheck disable=SC2046
(cd "$tmp" && gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -shared -fPIC -pthread $(pkg-config --cflags rdt) -o rdt_dir.so rdt_dir.c &&
  chmod 755 rdt_dir.so)

mkdir "$tmp/both"
"$bin/rdt-check-backend" --set directory="$tmp/both" "$tmp/rdt_dir.so" >"$tmp/checked" ||
  { cat "$tmp/checked"; fail "it does not pass"; }

head -c 32 /dev/urandom | base64 >"$tmp/key" && chmod 600 "$tmp/key"
for i in 1 2; do
  "$bin/rdtd" --config= --socket "$tmp/s$i" --state-dir "$tmp/state$i" --backend-dir "$tmp/root/usr/local/lib/rdtd" --listen 127.0.0.1:0 \
    --key-file "$tmp/key" >"$tmp/log$i" 2>&1 &
  pids+=($!)
  for ((n = 0; n < 400; n++)); do "$bin/rdtctl" --socket "$tmp/s$i" ping -q --timeout 1s 2>/dev/null && break; sleep 0.05; done
  "$bin/rdtctl" --socket "$tmp/s$i" backend load "$tmp/rdt_dir.so" directory="$tmp/both" |
    grep -q '^transport dir is loaded$' ||
    { cat "$tmp/log$i"; fail "it is not loaded"; }
done

header='{"x":{"dtype":"U8","shape":[1000000],"data_offsets":[0,1000000]}}'
printf -v length '\\x%02x' ${#header}
{ printf '%b%s' "$length\0\0\0\0\0\0\0" "$header"; head -c 1000000 /dev/urandom; } >"$tmp/in.safetensors"
ref=$("$bin/rdtctl" --socket "$tmp/s1" put -q "$tmp/in.safetensors" --id x --detached --ttl 5m)
"$bin/rdtctl" --socket "$tmp/s2" fetch "$ref" --transport dir --timeout 30s -o "$tmp/out.safetensors" ||
  { cat "$tmp"/log?; fail "fetch"; }
cmp "$tmp/in.safetensors" "$tmp/out.safetensors"
"$bin/rdtctl" --socket "$tmp/s2" backend unload dir | grep -q '^dir is unloaded$' || fail "it is not unloaded"
