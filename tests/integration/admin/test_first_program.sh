#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds README's first program against an installation, with nothing of this tree, and runs it against a daemon.
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../../.."
tmp=$(mktemp -d)
daemon=
# shellcheck disable=SC2317
cleanup() {
  [[ -z $daemon ]] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }
  rm -rf "$tmp"
}
trap cleanup EXIT
fail() { echo "$*"; exit 1; }

# The ```c block after the marker.
[[ ! -e README.md ]] || awk '/^<!-- first program -->$/ {marked = 1; next}
                             marked && /^```c$/ {inside = 1; marked = 0; next}
                             /^```/ {if (inside) exit}
                             inside' README.md >"$tmp/first.c"
if [[ ! -s $tmp/first.c ]]; then
  echo "README.md holds no C program after the line <!-- first program -->"
  exit 77
fi
if [[ -e tests/examples/first.c ]]; then
  diff -u tests/examples/first.c "$tmp/first.c" || fail "tests/examples/first.c is not the README's program"
fi

make --no-print-directory install DESTDIR="$tmp/root" PREFIX=/usr/local >"$tmp/log" ||
  { cat "$tmp/log"; fail "make install failed"; }
export PKG_CONFIG_PATH=$tmp/root/usr/local/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tmp/root LD_LIBRARY_PATH=$tmp/root/usr/local/lib
# Away from the tree, so that no header of it is found.
# shellcheck disable=SC2046
(cd "$tmp" && gcc -std=c11 -Wall -Wextra -Werror -o first first.c $(pkg-config --cflags --libs rdt))

# The headers and RDT_INIT in C++, where a designated initializer would be a warning.
cat >"$tmp/options.cc" <<'EOF'
#include <rdt.h>
int main()
{
    struct rdt_put_options put = RDT_INIT(put);
    const struct rdt_fetch_options fetch = RDT_INIT(fetch);
    return put.struct_size == sizeof put && fetch.struct_size == sizeof fetch && !put.id && !fetch.mode ? 0 : 1;
}
EOF
for standard in c++11 c++17; do
  # shellcheck disable=SC2046
  (cd "$tmp" && g++ -std=$standard -Wall -Wextra -pedantic -Werror -o options options.cc $(pkg-config --cflags --libs rdt) &&
    ./options) ||
    fail "RDT_INIT in $standard"
done

"$tmp/root/usr/local/bin/rdtd" --socket "$tmp/s" --state-dir "$tmp" --backend-dir "$tmp/root/usr/local/lib/rdtd" >"$tmp/daemon" 2>&1 &
daemon=$!
for ((i = 0; i < 400; i++)); do
  "$tmp/root/usr/local/bin/rdtctl" --socket "$tmp/s" ping -q --timeout 2s 2>/dev/null && break
  kill -0 "$daemon" 2>/dev/null || { cat "$tmp/daemon"; fail "rdtd did not start"; }
  sleep 0.05
done
RDT_SOCKET=$tmp/s timeout 30 "$tmp/first" || { status=$?; cat "$tmp/daemon"; fail "the program ended with status $status"; }
