#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the package as a wheel for other Pythons, without a network, and runs its tests in each. $RDT_PYTHONS lists the
# programs, with blanks between them; each has pip, setuptools, wheel and numpy.
# variant: release
# seconds: 1200
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
[[ -n ${RDT_PYTHONS:-} ]] ||
  { echo "no other Python was named: make test-pythons PYTHONS='python3.12 /opt/python3.13/bin/python3'"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/build" && cp -r client "$dir/" && ln -s "$RDT_BUILD_DIR" "$dir/build/release" && ln -s "$PWD/proto" "$dir/proto" ||
  exit 1
status=0
for python in $RDT_PYTHONS; do
  version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || { echo "$python is no Python"; exit 1; }
  "$python" -c 'import setuptools, wheel, numpy, pip' ||
    { echo "$python ($version) wants pip, setuptools, wheel and numpy"; exit 1; }
  rm -rf "$dir/client/python/build" "$dir/site" "$dir/wheels"
  "$python" -m pip -q --disable-pip-version-check wheel --no-build-isolation --no-index --no-deps -w "$dir/wheels" \
    "$dir/client/python" \
    >"$dir/out" 2>&1 &&
    "$python" -m pip -q --disable-pip-version-check install --no-index --no-deps --target "$dir/site" "$dir"/wheels/*.whl \
      >>"$dir/out" 2>&1 ||
    { cat "$dir/out"; exit 1; }
  echo "$version: $(basename "$dir"/wheels/*.whl)"
  for part in values life names loops holds groups gpu; do
    PYTHONPATH=$dir/site:tests/python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 timeout 120 "$python" \
      "tests/python/$part.py" >"$dir/out" 2>&1
    case $? in
    0 | 77) tail -n 1 "$dir/out" ;;
    *)
      cat "$dir/out"
      status=1
      ;;
    esac
  done
done
exit "$status"
