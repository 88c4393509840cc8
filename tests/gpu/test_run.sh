#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/run with suites that pass, fail and do not end: each has its row and its log, a failure stops nothing, a filter leaves out what
# it does not name, and torch and NCCL are found in a virtual environment. Refuses where there is no GPU.
# variant: release
set -uo pipefail
run=$(cd "$(dirname "$0")" && pwd)/run
build=$TMPDIR/build
mkdir -p "$build"/tests/{integration/devices,unit/backends,gpu,bench} "$TMPDIR"/bin
touch "$build/rdtd"
program() { # NAME COMMAND
  printf '#!/bin/bash\n%s\n' "$2" >"$build/tests/$1"
  chmod +x "$build/tests/$1"
}
program integration/devices/cuda 'for a; do [[ $a != --tap=* ]] || printf "ok - cuda::a\nok - cuda::b # SKIP no\n" >"${a#--tap=}"; done'
program integration/devices/cuda_life 'echo "[FAIL] cuda_life::it_broke"; exit 1'
program integration/devices/cuda_pool 'sleep 60'
program integration/devices/cuda_many 'echo many'
program unit/backends/nccl 'echo "$LD_LIBRARY_PATH"'
program unit/backends/nccl_ends 'echo ends'
program gpu/one_gpu 'echo one'
program gpu/gpu-probe 'echo "init | answered"'
program bench/gpu 'echo "copy 1 GB/s"'
program bench/gpu_nodes 'echo "nodes 1 GB/s"'

fail() { echo "$*"; cat "$TMPDIR/table"; exit 1; }
called() { # STATUS ARGUMENTS
  RDT_BUILD_DIR=$build RDT_GPU_LOGS=$TMPDIR/logs "$run" "${@:2}" >"$TMPDIR/table" 2>&1
  local rc=$?
  [[ $rc == "$1" ]] || fail "run ${*:2}: status $rc, not $1"
}
row() { grep -qE -- "$1" "$TMPDIR/table" || fail "no row is like '$1'"; }

RDT_GPU_DEVICE=$TMPDIR/none called 2 test
row 'no NVIDIA GPU'
export RDT_GPU_DEVICE=/dev/null

printf '#!/bin/sh\n' >"$TMPDIR/bin/ldconfig"
chmod +x "$TMPDIR/bin/ldconfig"
unset LD_LIBRARY_PATH PYTHON
python3 -m venv --without-pip "$TMPDIR/venv" || { echo "no venv: python3-venv"; exit 77; }
site=$("$TMPDIR/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site"/{torch,nvidia/nccl/lib}
touch "$site"/{torch/__init__.py,nvidia/nccl/lib/libnccl.so.2}
PATH=$TMPDIR/bin:$PATH VIRTUAL_ENV=$TMPDIR/venv RDT_GPU_SUITE_SECONDS=1 called 1 test
row 'torch: .*/venv/bin/python'
row 'NCCL: .*/nvidia/nccl/lib'
row '^integration/devices/cuda +ok .*2 ended well, 1 of them skipped, 0 failed'
row '^integration/devices/cuda_life +FAILED'
row '^integration/devices/cuda_pool +NO END .*stopped after 1 s'
row '^unit/backends/nccl +ok .*/nvidia/nccl/lib'
row '^unit/backends/nccl_ends +ok'
row '^gpu/one_gpu +ok'
row '^torch +skipped'
row '^\[FAIL\] cuda_life::it_broke'
[[ -s $TMPDIR/logs/integration-devices-cuda_life.log ]] || fail "the failed suite has no log"

called 0 test one_gpu
row '^gpu/one_gpu +ok'
if grep -q '^integration' "$TMPDIR/table"; then fail "the filter let others through"; fi
called 2 test nonsense
called 0 probe
row '^init \| answered'
called 0 bench
row '^copy 1 GB/s'
row '^nodes 1 GB/s'
called 0 all one_gpu
row '^gpu/one_gpu +ok'
called 0 all integration/devices/cuda_m
row '^integration/devices/cuda_many +ok'
[[ $(grep -c '^integration' "$TMPDIR/table") == 1 ]] || fail "a suite ran twice"
RDT_GPU_SECONDS=0 called 1 test one_gpu # the call has no time left
row '^gpu/one_gpu +NOT RUN'

# README.md has a row for each suite that this tree has.
cd "$(dirname "$run")/../.." || exit 1
for name in 'run probe' torch torch/expandable_segments tests/integration/devices/cuda*.c tests/unit/backends/nccl*.c tests/gpu/one_gpu.c \
  tests/bench/gpu.c tests/bench/gpu_nodes.c bench/torch_weights mps sanitizer; do
  name=${name#tests/}
  grep -qF "| \`${name%.c}\` |" tests/gpu/README.md || { echo "tests/gpu/README.md has no row for ${name%.c}"; exit 1; }
done
