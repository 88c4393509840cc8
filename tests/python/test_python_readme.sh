#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the README's Python programs word for word and compares what they print; installs the package with pip, if pip is
# there.
# variant: release
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/support/daemon.sh
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
python=${PYTHON:-/usr/bin/python3}
[[ -x $python ]] || python=python3
"$python" -c 'import numpy' 2>/dev/null || { echo "no numpy for $python"; exit 77; }
dir=$(mktemp -d)
export RDT_SOCKET=$dir/s PYTHONDONTWRITEBYTECODE=1
trap '[[ -z ${daemon:-} ]] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null; rm -rf "$dir"' EXIT
awk '/^<!-- python -->$/ {marked = 1; next}
     marked && /^```python$/ {inside = 1; marked = 0; next}
     /^```/ {if (inside) exit}
     inside' README.md >"$dir/first.py"
[[ -s $dir/first.py ]] || { echo "README.md holds no Python after the line <!-- python -->"; exit 1; }
sed -n 's/^ *print(.*# //p' "$dir/first.py" >"$dir/wanted"
[[ -s $dir/wanted ]] || { echo "the README's program does not say what it prints"; exit 1; }
serve "$RDT_SOCKET" "$dir/log" --state-dir ''
check() { # PYTHONPATH
  (cd "$dir" && PYTHONPATH=$1 timeout 60 "$python" first.py) >"$dir/out" 2>&1 || { cat "$dir/out"; return 1; }
  diff -u "$dir/wanted" "$dir/out"
}
check "$RDT_BUILD_DIR/python" || exit 1

# ---- pip ----

if [[ $RDT_BUILD_DIR != "$PWD/build/release" ]] || ! "$python" -c 'import setuptools, wheel, pip' 2>/dev/null; then
  echo "pip install: not tried, $python has no pip, setuptools or wheel"
  exit 0
fi
cp -r client "$dir/" && mkdir -p "$dir/build" && ln -s "$RDT_BUILD_DIR" "$dir/build/release" && ln -s "$PWD/proto" "$dir/proto"
"$python" -m pip -q --disable-pip-version-check install --no-build-isolation --no-index --no-deps --target "$dir/site" \
  "$dir/client/python" \
  >"$dir/out" 2>&1 || { cat "$dir/out"; exit 1; }
check "$dir/site" || exit 1
[[ $("$python" -c 'import sys; sys.path[0] = sys.argv[1]; import rdtd; print(rdtd.__file__)' "$dir/site") == "$dir/site/"* ]]
