#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The sources keep the rules of form that a machine can check: lines of at most 128 columns, one container_of, the order and spaces
# of clang-format where its version is the one that .clang-format was written for; and the glossary has at most 40 entries.
# variant: release
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
failed=0
bad() { echo "$*"; failed=1; }

# tests/abi/v1 is frozen, and tests/examples/rdt_dir.c is printed in a manual page as it is.
sources() { find proto daemon backends client tests -name '*.[ch]' ! -path 'tests/abi/v1/*' ! -path tests/examples/rdt_dir.c; }
(($(sources | wc -l) > 500)) || bad "there are only $(sources | wc -l) sources"

long=$(sources | xargs "${PYTHON:-/usr/bin/python3}" -c 'import sys
for path in sys.argv[1:]:
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        if len(line.rstrip("\n")) > 128: print(f"{path}:{number}")')
[[ -z $long ]] || bad "lines of more than 128 columns: $long"

# The Python package has its own, because it also builds where only an installed librdt is.
found=$(sources | xargs grep -l 'define container_of' | sort | tr '\n' ' ')
[[ $found == 'client/python/src/rdtpy.h proto/container_of.h ' ]] || bad "container_of is defined in $found"

if [[ $(clang-format --version 2>/dev/null) == *'version 14.'* ]]; then
  wrong=$(sources | grep -v '^tests/examples/' | xargs clang-format --dry-run 2>&1 | grep 'warning:')
  [[ -z $wrong ]] || bad "make format would change: $wrong"
else
  echo "clang-format 14 is not installed: the form of the sources was not checked"
fi

entries=$(awk '/^## / {on = /^## Glossary/} on && /^\| / && !/^\| (term|---)/' daemon/ARCHITECTURE.md | wc -l)
((entries > 25 && entries <= 40)) || bad "the glossary has $entries entries"
exit $failed
