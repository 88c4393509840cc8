#!/usr/bin/env bash
# The suite of one-sided reads over ucx, from another process's memory on this machine (cma), for want of an RDMA device. With another
# UCX than the one of the build (RDT_UCX_PATH, see `make ucx-wheels`): 1.13 would emulate the reads over TCP.
set -euo pipefail
[[ -n ${RDT_UCX_PATH:-} ]] || { echo 'RDT_UCX_PATH names no folder with another libucp.so.0'; exit 77; }
[[ $(id -u) == 0 ]] || { echo "needs root, to read another process's memory whatever the machine allows"; exit 77; }

export LD_LIBRARY_PATH=$RDT_UCX_PATH UCX_TLS=tcp,cma UCX_CMA_MEMORY_INVALIDATE=y
export RDT_BACKEND_SO=$RDT_BUILD_DIR/backends/rdt_ucx.so RDT_BACKEND_CONFIG=one_sided=always
# An RDMA device refuses what is no longer registered; the kernel knows of no registration.
"$RDT_BUILD_DIR/tests/conformance/transport_reads" -j1 --verbose --color=never --filter 'transport_reads/!(read_after_unregister_is_refused)' |& tee "$TMPDIR/out"
grep -q 'Tested: 5 | Passing: 5' "$TMPDIR/out"
