#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test_mps.sh: GPU memory under an MPS of this user, and what a daemon of another user says that sees its pipes. Skipped (77)
# without a GPU (RDT_TEST_GPU) or without nvidia-cuda-mps-control. Changes no setting of the GPU.
# variant: release
set -uo pipefail
[[ -n ${RDT_TEST_GPU:-} ]] || { echo "this is for a GPU: make test-gpu"; exit 77; }
command -v nvidia-cuda-mps-control >/dev/null || { echo "there is no nvidia-cuda-mps-control"; exit 77; }
build=$RDT_BUILD_DIR
dir=$(mktemp -d "${TMPDIR:-/tmp}/mps.XXXXXX")
export CUDA_MPS_PIPE_DIRECTORY=$dir/pipes CUDA_MPS_LOG_DIRECTORY=$dir/log
mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d || { echo "MPS does not start"; exit 77; }
trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$dir"' EXIT
status=0
for program in cuda cuda_plans; do
  timeout 60 "$build/tests/integration/devices/$program" --color=never -j1 || { echo "$program under MPS: status $?"; status=1; }
done
if [[ $(id -u) == 0 ]] && command -v setpriv >/dev/null; then
  chmod -R a+rwX "$dir"
  setpriv --reuid=65534 --regid=65534 --clear-groups timeout 40 "$build/rdtd" --socket "$dir/s" --backend-dir "$build/backends" \
    --state-dir '' >"$dir/rdtd.log" 2>&1 &
  for ((i = 0; i < 150; i++)); do [[ -S $dir/s ]] && break || sleep 0.1; done
  echo "a daemon of another user says:"
  timeout 10 "$build/rdtctl" --socket "$dir/s" backends
  wait
  cat "$dir/rdtd.log"
fi
exit $status
