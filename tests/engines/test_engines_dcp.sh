#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtd.dcp: checkpoints of torch.distributed.checkpoint with real processes of torch.distributed on the CPU. RDT_TORCH_PYTHON
# or RDT_TRAINERS_PYTHON names a Python of the package's version that has torch; otherwise the system's is tried. Skipped (77)
# without torch.
# variant: release
# seconds: 600
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
need_python "${RDT_TORCH_PYTHON:-${RDT_TRAINERS_PYTHON:-}}" torch 'import torch.distributed.checkpoint'
timeout 560 "$python" -W ignore tests/engines/dcp_checkpoints.py "$@" || exit
[[ $# -gt 0 ]] || tests/engines/example "TORCH CHECKPOINTS" "$python"
