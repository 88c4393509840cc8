#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the Python package against real daemons; those of GPU memory use a fake driver.
# seconds: 1200
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
here=tests/python
extension=$(compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so") ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
[[ $RDT_VARIANT != tsan ]] || { echo "Python itself is not built for tsan"; exit 77; }
python=${PYTHON:-/usr/bin/python3}
[[ -x $python ]] || python=python3
[[ $extension == *"$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" ]] ||
  { echo "the package was built for another Python than $python"; exit 1; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$here PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
if [[ $RDT_VARIANT == asan ]]; then # Python keeps what it has until the end, and says so to nobody
  preload=$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)
  options=${ASAN_OPTIONS:-}:detect_leaks=0:detect_stack_use_after_return=0
fi
status=0
for part in values arguments pickles buffers targets life names many shards follow publishing deltas part_deltas loops interrupts descriptors holds info groups gpu gpu_plans restarts lost_answers storage stores cache cache_storage cache_kills cache_nodes; do
  if [[ $RDT_VARIANT == asan ]]; then
    LD_PRELOAD=$preload PYTHONMALLOC=malloc ASAN_OPTIONS=$options timeout 280 "$python" "$here/$part.py"
  else
    timeout 120 "$python" "$here/$part.py"
  fi
  case $? in
  0 | 77) ;;
  *) status=1 ;;
  esac
done
exit "$status"
