#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ray over rdtd, on real clusters of Ray on this machine. $RDT_RAY_PYTHON is a Python that has ray, torch and numpy; without
# it the system's is tried.
# variant: release
# seconds: 900
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/support/daemon.sh
extension=$(compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so") ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
python=${RDT_RAY_PYTHON:-${PYTHON:-/usr/bin/python3}}
[[ -x $python ]] || python=python3
"$python" -c 'import ray, torch, numpy' 2>/dev/null ||
  { echo "$python has no ray, torch and numpy: make test-ray installs them"; exit 77; }
[[ $extension == *"$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" ]] ||
  { echo "the package was built for another Python than $python"; exit 1; }
export PYTHONPATH=$RDT_BUILD_DIR/python:$PWD/tests/python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
timeout 700 "$python" tests/python/ray_transport.py || exit
for part in ray_gpu buffers values; do # with what only that Python has: Ray, pyarrow and torch
  timeout 120 "$python" "tests/python/$part.py"
  case $? in
  0 | 77) ;; # 77: built without cuda.h
  *) exit 1 ;;
  esac
done
timeout 150 "$python" tests/python/ray_restarts.py || exit

# The README's program, word for word, with a daemon that runs already.
dir=$(mktemp -d)
export RDT_SOCKET=$dir/s RAY_USAGE_STATS_ENABLED=0
trap '[[ -z ${daemon:-} ]] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null; rm -rf "$dir"' EXIT
awk '/^<!-- ray -->$/ {marked = 1; next}
     marked && /^```python$/ {inside = 1; marked = 0; next}
     /^```/ {if (inside) exit}
     inside' README.md >"$dir/first.py"
[[ -s $dir/first.py ]] || { echo "README.md holds no Python after the line <!-- ray -->"; exit 1; }
serve "$RDT_SOCKET" "$dir/log" --state-dir ''
for program in "$dir/first.py" tests/examples/ray_weights.py; do
  timeout 80 "$python" "$program" >>"$dir/all" 2>"$dir/err" || { cat "$dir/all" "$dir/err"; exit 1; }
done
for ((i = 0; i < 400; i++)); do # Ray's workers end a little after their driver
  grep -lsaF "RDT_SOCKET=$RDT_SOCKET" /proc/[0-9]*/environ | grep -qv "/$daemon/" || break
  sleep 0.05
done
diff -u - "$dir/all" <<'EOF'
1000000.0 torch.Size([1000, 1000])
1 [1.0, 1.0]
2 [2.0, 2.0]
3 [3.0, 3.0]
EOF
