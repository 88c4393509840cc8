#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The measurements of GPU memory run to their end on the FAKES, print every row, and say that the figures mean nothing
# there.
# variant: release
set -uo pipefail
unset RDT_TEST_GPU
bench=$RDT_BUILD_DIR/tests/bench
[[ -e $RDT_BUILD_DIR/backends/rdt_nccl.so ]] || { echo "built without cuda.h: make cuda-headers"; exit 77; }
rows() { # PROGRAM TEXT ...
  local program=$1 text
  "$bench/$program" >"$TMPDIR/$program" 2>&1 || { cat "$TMPDIR/$program"; echo "$program: status $?"; exit 1; }
  shift
  for text in "on the FAKE driver: these figures mean nothing" "$@"; do
    grep -qF -- "$text" "$TMPDIR/$program" || { cat "$TMPDIR/$program"; echo "$program: no \"$text\""; exit 1; }
  done
}
rows gpu "an idle rdtd holds 0 bytes" "share with another process" "copy on the GPU" "GPU to host" "host to GPU"
rows gpu_nodes "daemons, stream/staged" "host to host by stream" "daemons, ucx/staged" "host to host by ucx" "daemons, nccl   "
FAKE_NCCL_REFUSES=1 rows gpu_nodes "daemons, ucx/staged" "daemons, nccl: skipped: " "Duplicate GPU"
