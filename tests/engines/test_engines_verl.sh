#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# verl's own manager over rdtd.verl, with actors of Ray. RDT_TRAINERS_PYTHON names a Python that has verl and ray.
# variant: release
# seconds: 600
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
extension=$(compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so") ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
python=${RDT_TRAINERS_PYTHON:-$python}
"$python" -c 'import importlib.metadata as m; m.version("verl"), m.version("ray")' 2>/dev/null ||
  { echo "$python has no verl and ray: make test-engines installs them"; exit 77; }
[[ $extension == *"$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" ]] ||
  { echo "the package was built for another Python than $python"; exit 77; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$PWD/tests/python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 OMP_NUM_THREADS=1
exec timeout 590 "$python" tests/engines/verl_manager.py "$@"
