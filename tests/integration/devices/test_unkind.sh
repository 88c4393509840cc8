#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests of GPU memory again, with a driver that is unkind in all ways at once (tests/fake_cuda/fake_cuda.h).
# seconds: 600
# variant: release
set -eu
cd "$(dirname "$0")/../../.."

programs=$RDT_BUILD_DIR/tests/integration/devices
if [ ! -e "$RDT_BUILD_DIR/backends/rdt_nccl.so" ]; then
    echo "cuda.h was not there when this was built: make cuda-headers"
    exit 77
fi
# Each switch of the table is one that the fakes ask about.
switches=$(sed -n '/^ \* switches one off again/,/^ \* Environment variables/s/^ \*   \(FAKE_CUDA_[A-Z_]*\) .*/\1/p' tests/fake_cuda/fake_cuda.h)
for switch in $switches FAKE_NCCL_ABORT_WAITS; do
    grep -rqF "fake_unkind(\"$switch\")" tests/fake_cuda tests/fake_nccl || { echo "no fake asks for $switch"; exit 1; }
done
[ "$(echo "$switches" | wc -w)" -ge 13 ] || { echo "the table of switches was not found: $switches"; exit 1; }

export FAKE_CUDA_UNKIND=1
for program in "$programs"/cuda* "$RDT_BUILD_DIR/tests/unit/backends/nccl" "$RDT_BUILD_DIR/tests/unit/backends/nccl_ends"; do
    case ${program##*/} in *.*) continue ;; esac
    "$program" -j1 || { echo "${program##*/} fails with an unkind driver"; exit 1; }
done
