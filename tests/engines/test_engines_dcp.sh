#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtd.dcp: checkpoints of torch.distributed.checkpoint with real processes of torch.distributed on the CPU. RDT_TORCH_PYTHON
# or RDT_TRAINERS_PYTHON names a Python of the package's version that has torch; otherwise the system's is tried. Skipped (77)
# without torch.
# variant: release
# seconds: 600
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
python=${RDT_TORCH_PYTHON:-${RDT_TRAINERS_PYTHON:-$python}}
"$python" -c 'import torch.distributed.checkpoint' 2>/dev/null ||
  { echo "$python has no torch: RDT_TORCH_PYTHON=... names one that has, and make test-engines installs one"; exit 77; }
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
[[ -e $RDT_BUILD_DIR/python/rdtd/_rdt$suffix ]] ||
  { echo "the package was built for another Python than $python, which loads *$suffix"; exit 77; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$here/../python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 OMP_NUM_THREADS=1
timeout 560 "$python" -W ignore "$here/dcp_checkpoints.py" "$@" || exit
[[ $# -gt 0 ]] || "$here/example" "TORCH CHECKPOINTS" "$python"
