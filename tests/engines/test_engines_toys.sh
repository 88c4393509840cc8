#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The modules of the engines on models of a few tensors, with real daemons and without the engines. RDT_TORCH_PYTHON names a
# Python of the package's version that has torch; otherwise that of `make test-engines`, or the system's. Skipped (77)
# without torch.
# variant: release
# seconds: 600
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
need_python "${RDT_TORCH_PYTHON:-${RDT_TRAINERS_PYTHON:-}}" torch 'import torch'
each_part 280 vllm_toys vllm_nodes sglang_update verl_processes other_versions
