# SPDX-License-Identifier: Apache-2.0
# The cost of Python above librdt, measured alternately in the same process. The reference is the cost that is allowed.

if wanted python; then
  python=${PYTHON:-/usr/bin/python3}
  if ! compgen -G "$build/python/rdtd/_rdt*.so" >/dev/null; then
    echo 'python: skipped, the package was not built (python3-dev)'
  elif ! PYTHONPATH=$build/python "$python" -c 'import numpy, rdtd' 2>/dev/null; then
    echo "python: skipped, $python has no numpy"
  else
    PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1 timeout 120 taskset -c 1 "$python" tests/bench/python.py "$build/librdt.so" "$dir/a.sock" \
      >>"$results" 2>"$dir/python.log" || fail 'python.py'
    note python_get 'above the library, beside what it may be'
    note python_put_10000 'a tensor, above the library, beside what it may be'
    note python_get_10000 'a tensor, above the library, beside what it may be'
  fi
fi
