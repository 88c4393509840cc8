#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu-probe asks the FAKE driver and NCCL every question, gets an answer to each within its limit, and says why where it gets none. Its
# answers are the fakes' here and mean nothing.
# variant: release
set -uo pipefail
probe=$RDT_BUILD_DIR/tests/gpu/gpu-probe fakes=$RDT_BUILD_DIR/tests
[[ -x $probe ]] || { echo "built without cuda.h: make cuda-headers"; exit 77; }
failed=0
expect() { # PATTERN: there is such a row
  grep -qE -- "$1" "$TMPDIR/rows" || { echo "no row is like '$1'"; failed=1; }
}
asks() { # PROBE'S ARGUMENTS
  "$probe" "$@" >"$TMPDIR/rows" 2>&1 || { echo "probe $*: status $?"; failed=1; }
}

asks
expect '^init +\| not answered: libcuda'
expect '^abort of two groups, one after the other +\| not a(sked|nswered): lib'

export LD_LIBRARY_PATH=$fakes/fake_cuda:$fakes/fake_nccl
asks
for row in '^gpu 0 +\| .*uuid 66616b65' '^gpu 0: attributes +\| .*vmm=1' '^context: memory +\| ' '^granularity with the RDMA flag +\| ok' \
  '^create without a context +\| create ok, export ok; context active: 0' '^width of DEVICE_ORDINAL +\| 4 bytes' \
  '^pointer query, VMM, no context' '^VMM: import by another process +\| import ok, map and access: ok, data: right' \
  '^re-export of an imported VMM handle +\|' '^VMM: exporter killed while it is mapped +\| data: right' \
  '^VMM: importer sees only another GPU +\| import' '^legacy: open by another process +\| open ok, data: right' \
  '^legacy: range at the importer +\|' '^legacy: handles of two blocks' '^legacy: opened twice +\|' \
  '^legacy: exporter killed while it is open +\| data: right' '^microseconds, 64 MiB +\| create' '^register 16 MiB, huge pages +\| ok' \
  '^register a read-only mapping +\|' '^256 KiB copies, a callback after each +\| [0-9.]+ us' '^cuMemFree beside a kernel +\| ok' \
  '^cuIpcCloseMemHandle beside a kernel +\| after' '^abort of two groups, one after the other +\| NCCL [0-9]+: group 2 of 2' \
  '^abort of two groups in one group call +\| NCCL [0-9]+: [0-9]+ ms'; do
  expect "$row"
done
if grep -E 'DIED|NO END|gives? no more|has given no' "$TMPDIR/rows"; then failed=1; fi
if [[ $(id -u) == 0 ]]; then
  expect '^legacy: importer of another uid +\| open'
  expect '^legacy: root opens what another uid exports +\| open'
else
  expect '^legacy: importer of another uid +\| not asked: needs root'
fi

FAKE_CUDA_INIT=999 asks init # an error of the driver is a row
expect '^init +\| not answered: cuInit: '
FAKE_NCCL_HANG=1 asks 'one after' # and so is a call that does not end
expect '^abort of two groups, one after the other +\| (not answered: .*no end|NO END)'
((failed == 0)) || { echo "the last rows:"; cat "$TMPDIR/rows"; exit 1; }
