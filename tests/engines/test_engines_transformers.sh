#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# from_pretrained of transformers from a published name. RDT_TRAINERS_PYTHON names a Python that has torch and transformers.
# variant: release
# seconds: 300
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
need_python "${RDT_TRAINERS_PYTHON:-}" 'torch and transformers' \
  'import importlib.metadata as m; m.version("torch"), m.version("transformers")'
exec timeout 290 "$python" tests/engines/transformers_load.py "$@"
