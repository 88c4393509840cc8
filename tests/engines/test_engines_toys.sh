#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The modules of the engines on models of a few tensors, with real daemons and without the engines. RDT_TORCH_PYTHON names a
# Python of the package's version that has torch; otherwise that of `make test-engines`, or the system's. Skipped (77)
# without torch. variant: release
# seconds: 600
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
python=${RDT_TORCH_PYTHON:-${RDT_TRAINERS_PYTHON:-$python}}
"$python" -c 'import torch' 2>/dev/null ||
  { echo "$python has no torch: make test-engines installs it, or RDT_TORCH_PYTHON=... names one that has it"; exit 77; }
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
[[ -e $RDT_BUILD_DIR/python/rdtd/_rdt$suffix ]] ||
  { echo "the package was built for another Python than $python, which loads *$suffix"; exit 77; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$PWD/tests/python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 OMP_NUM_THREADS=1
status=0
for part in vllm_toys sglang_update verl_processes; do
  timeout 280 "$python" "tests/engines/$part.py"
  case $? in
  0 | 77) ;;
  *) status=1 ;;
  esac
done
exit "$status"
