#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# from_pretrained of transformers from a published name. RDT_TRAINERS_PYTHON names a Python that has torch and transformers.
# variant: release
# seconds: 300
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
extension=$(compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so") ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
python=${RDT_TRAINERS_PYTHON:-$python}
"$python" -c 'import importlib.metadata as m; m.version("torch"), m.version("transformers")' 2>/dev/null ||
  { echo "$python has no torch and transformers: make test-engines installs them"; exit 77; }
[[ $extension == *"$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" ]] ||
  { echo "the package was built for another Python than $python"; exit 77; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$PWD/tests/python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 OMP_NUM_THREADS=1
exec timeout 290 "$python" tests/engines/transformers_load.py "$@"
