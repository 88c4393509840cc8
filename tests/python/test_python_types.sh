#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the package's types, and a program that uses them.
# variant: release
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
command -v mypy >/dev/null || { echo "mypy is not installed"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
MYPYPATH=client/python mypy --strict --cache-dir "$dir" client/python/rdtd tests/python/typed.py
