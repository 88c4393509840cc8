#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs rdtd's own side of every workload of `make bench-workloads` once, with tiny sizes, in Python without torch: each still runs, its readers
# see what was written, and nothing is left. No figure is judged. Ray's sides say that they were not run.
# variant: release
# seconds: 1200
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null || { echo "the Python package was not built (python3-dev)"; exit 77; }
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import numpy' 2>/dev/null || { echo "$python has no numpy"; exit 77; }
unshare -nm true 2>/dev/null || { echo "no namespaces of network and mounts here: they need root, and not in a chroot"; exit 77; }
QUICK=1 "$python" tests/bench/workloads/run.py >"$TMPDIR/out" 2>"$TMPDIR/err" || { cat "$TMPDIR/out" "$TMPDIR/err"; exit 1; }
for row in 'weights' 'batches/s' 'a dict of 10000 tensors: read p50' 'queue: stalled' 'four engines at once: load beside memcpy'; do
  grep -q "$row" "$TMPDIR/out" || { echo "there is no row of: $row"; cat "$TMPDIR/out"; exit 1; }
done
if grep -A1 -E ': (mixed|stalled|left)$' "$TMPDIR/out" | grep -E '^ {4}rdtd' | grep -vE ' 0   \['; then
  echo 'rdtd mixed steps, stalled a survivor or left something'
  exit 1
fi
