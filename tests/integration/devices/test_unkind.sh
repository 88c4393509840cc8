#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests of GPU memory again, with a driver that is unkind in all ways at once (tests/fake_cuda/fake_cuda.h).
# seconds: 600
# variant: release
set -eu

programs=$RDT_BUILD_DIR/tests/integration/devices
if [ ! -e "$RDT_BUILD_DIR/backends/rdt_nccl.so" ]; then
    echo "cuda.h was not there when this was built: make cuda-headers"
    exit 77
fi
export FAKE_CUDA_UNKIND=1
for name in cuda cuda_counts cuda_life cuda_missing cuda_nodes cuda_owners cuda_pool cuda_refused cuda_streams cuda_visible; do
    "$programs/$name" -j1 || { echo "$name fails with an unkind driver"; exit 1; }
done
