# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of this folder, in the root of the tree.
# shellcheck shell=bash

# need_python PYTHON PACKAGES CODE: sets python to PYTHON, or to the system's if that is empty, and the variables with which it
# finds the package of $RDT_BUILD_DIR and the tests' modules. Ends the test as skipped (77) where the package was not built, or
# where the code, which imports what is needed, fails.
need_python() {
  local suffix given=$1 packages=$2 code=$3
  compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null || { echo "the Python package was not built (python3-dev)"; exit 77; }
  [[ -x /usr/bin/python3 ]] && python=/usr/bin/python3 || python=python3
  python=${given:-$python}
  "$python" -c "$code" 2>/dev/null || { echo "$python has no $packages: make test-engines installs what is missing"; exit 77; }
  suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  [[ -e $RDT_BUILD_DIR/python/rdtd/_rdt$suffix ]] ||
    { echo "the package was built for another Python than $python, which loads *$suffix"; exit 77; }
  export PYTHONPATH=$RDT_BUILD_DIR/python:$PWD/tests/python:$PWD/tests/engines
  export PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 OMP_NUM_THREADS=1
}

# each_part SECONDS NAME ...: runs the programs NAME.py, each for so long at most; 77 of one is not a failure.
each_part() {
  local status=0 seconds=$1 part
  shift
  for part in "$@"; do
    timeout "$seconds" "$python" "tests/engines/$part.py"
    case $? in
    0 | 77) ;;
    *) status=1 ;;
    esac
  done
  return "$status"
}
