#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtd.fsspec: published names as files of fsspec. RDT_TORCH_PYTHON or RDT_TRAINERS_PYTHON names a Python of the package's
# version that has fsspec and numpy, and perhaps torch, pyarrow, pandas, safetensors and zarr; otherwise the system's is tried.
# Skipped (77) without fsspec.
# variant: release
# seconds: 300
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
need_python "${RDT_TORCH_PYTHON:-${RDT_TRAINERS_PYTHON:-}}" 'fsspec and numpy' 'import fsspec, numpy'
timeout 260 "$python" tests/engines/fsspec_files.py "$@" || exit
[[ $# -gt 0 ]] || tests/engines/example FSSPEC "$python"
