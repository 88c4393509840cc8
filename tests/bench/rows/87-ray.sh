# SPDX-License-Identifier: Apache-2.0
# Ray, where $RDT_RAY_PYTHON (or the system's Python) has it: from actor to actor by Ray's object store, by RDT over gloo,
# nixl, rdtd and echo, and by rdtd alone. Starting a Ray cluster takes a minute.

if wanted ray; then
  python=${RDT_RAY_PYTHON:-${PYTHON:-/usr/bin/python3}}
  if ! compgen -G "$build/python/rdtd/_rdt*.so" >/dev/null; then
    echo 'ray: skipped, the Python package was not built (python3-dev)'
  elif ! "$python" -c 'import ray, torch' 2>/dev/null; then
    echo "ray: skipped, $python has no ray and torch: make test-ray installs them, RDT_RAY_PYTHON=build/ray/bin/python make bench BENCH_ROWS=ray"
  else
    start_daemon ray 0,1 # wherever the kernel puts it, as Ray's own processes
    start_program echo_ray 0,1 echo unix "$dir/echo_ray.sock"
    # shellcheck disable=SC2086 # shapes are words
    ECHO_SOCKET=$dir/echo_ray.sock PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1 timeout 900 \
      "$python" tests/bench/ray_bench.py "$dir/ray.sock" ${BENCH_RAY:-} \
      >>"$results" 2>"$dir/ray.log" || fail 'ray_bench.py'
    stop echo_ray
    stop ray
    if [[ -z ${BENCH_RAY:-} ]]; then
      PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1 timeout 200 "$python" tests/bench/ray_overlap.py "$dir/a.sock" "$dir/b.sock" \
        >>"$results" 2>"$dir/ray.log" || fail 'ray_overlap.py'
    fi
  fi
fi
