#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtd.fsspec: published names as files of fsspec. RDT_TORCH_PYTHON or RDT_TRAINERS_PYTHON names a Python of the package's
# version that has fsspec and numpy, and perhaps torch, pyarrow, pandas, safetensors and zarr; otherwise the system's is tried.
# Skipped (77) without fsspec.
# variant: release
# seconds: 300
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
python=${RDT_TORCH_PYTHON:-${RDT_TRAINERS_PYTHON:-$python}}
"$python" -c 'import fsspec, numpy' 2>/dev/null ||
  { echo "$python has no fsspec and numpy: make test-engines installs them"; exit 77; }
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
[[ -e $RDT_BUILD_DIR/python/rdtd/_rdt$suffix ]] ||
  { echo "the package was built for another Python than $python, which loads *$suffix"; exit 77; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$here/../python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
timeout 260 "$python" "$here/fsspec_files.py" "$@" || exit
[[ $# -gt 0 ]] || "$here/example" FSSPEC "$python"
