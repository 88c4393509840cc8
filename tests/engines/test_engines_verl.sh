#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# verl's own manager over rdtd.verl, with actors of Ray. RDT_TRAINERS_PYTHON names a Python that has verl and ray.
# variant: release
# seconds: 600
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. tests/engines/python.sh
need_python "${RDT_TRAINERS_PYTHON:-}" 'verl and ray' 'import importlib.metadata as m; m.version("verl"), m.version("ray")'
exec timeout 590 "$python" tests/engines/verl_manager.py "$@"
