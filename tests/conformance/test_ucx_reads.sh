#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The suite of one-sided reads over ucx, which read the memory of another process on this machine (cma), because
# there is no RDMA device. It needs another UCX than the one of the build (RDT_UCX_PATH, see `make ucx-wheels`): 1.13
# would emulate the reads over TCP.
set -euo pipefail
[[ -n ${RDT_UCX_PATH:-} ]] || { echo 'RDT_UCX_PATH names no folder with another libucp.so.0'; exit 77; }
[[ $(id -u) == 0 ]] || { echo "needs root, to read another process's memory whatever the machine allows"; exit 77; }

export LD_LIBRARY_PATH=$RDT_UCX_PATH UCX_TLS=tcp,cma UCX_CMA_MEMORY_INVALIDATE=y
# An RDMA device refuses reads of memory that is no longer registered; the kernel knows of no registration.
for check in reads_of_all_sizes many_reads_at_once read_outside_the_registration forged_key killed_owner; do
  "$RDT_BUILD_DIR/rdt-check-backend" --set one_sided=always --only "$check" "$RDT_BUILD_DIR/backends/rdt_ucx.so" |&
    tee "$TMPDIR/out"
  grep -q '^2 ok, 0 failed, 0 skipped' "$TMPDIR/out"
done
for check in reads_of_all_sizes many_reads_at_once read_outside_the_registration; do # of 64 MiB, in 13 registrations
  "$RDT_BUILD_DIR/rdt-check-backend" --set one_sided=always --set slice_mib=5 --only "$check" \
    "$RDT_BUILD_DIR/backends/rdt_ucx.so" |& tee "$TMPDIR/out"
  grep -q '^2 ok, 0 failed, 0 skipped' "$TMPDIR/out"
done
