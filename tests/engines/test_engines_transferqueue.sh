#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtd.transferqueue: the client and manager by themselves, and TransferQueue's own end-to-end suites over them.
# RDT_TRAINERS_PYTHON names a Python of the package's version that has TransferQueue, Ray, torch and pytest. Skipped (77)
# without them.
# variant: release
# seconds: 1500
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
. tests/support/daemon.sh
need_python "${RDT_TRAINERS_PYTHON:-}" 'transferqueue, ray, torch, pytest and pytest-asyncio' \
  'import transfer_queue, ray, torch, pytest, pytest_asyncio'
export RAY_USAGE_STATS_ENABLED=0
timeout 400 "$python" tests/engines/transfer_queue_batches.py "$@" || exit
[[ $# -eq 0 ]] || exit 0
tests/engines/example TRANSFERQUEUE "$python" || exit

dir=$(mktemp -d)
trap '[[ -z ${daemon:-} ]] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null; rm -rf "$dir"' EXIT
export RDT_SOCKET=$dir/s TQ_TEST_BACKEND=rdtd
serve "$RDT_SOCKET" "$dir/log" --state-dir ''
suites=$("$python" -c 'import os, transfer_queue
print(os.path.join(os.path.dirname(os.path.dirname(transfer_queue.__file__)), "tests"))')
[[ -d $suites/e2e ]] || { echo "this TransferQueue comes without its tests"; exit 77; }
cd "$suites" || exit 1
timeout 900 "$python" -m pytest -q -p no:cacheprovider -p transfer_queue_plugin --rootdir "$suites" \
  e2e/test_kv_interface_e2e.py e2e/test_e2e_lifecycle_consistency.py 2>&1 | tail -40 || exit 1
[[ -z $("$RDT_BUILD_DIR/rdtctl" objects --json | grep '"generation"') ]] || { echo "objects are left"; exit 1; }
