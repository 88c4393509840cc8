#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test_torch.sh [CONF [FILE]]: PyTorch's tensors on a GPU: runs FILE (torch_tensors.py), with CONF as PYTORCH_CUDA_ALLOC_CONF
# (expandable_segments:True), unless it is empty. Skipped (77) if no installed torch can use a GPU, or if the package was built for another
# Python; the last line says which.
# variant: release
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
python=${PYTHON:-$python}
command -v "$python" >/dev/null || { echo "there is no $python: PYTHON=... names one"; exit 77; }
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
[[ -e $RDT_BUILD_DIR/python/rdtd/_rdt$suffix ]] ||
  { echo "the package was built for another Python than $python, which loads *$suffix"; exit 77; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$here:$here/../python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
[[ -z ${1:-} ]] || export PYTORCH_CUDA_ALLOC_CONF=$1
exec timeout 200 "$python" "$here/${2:-torch_tensors.py}"
