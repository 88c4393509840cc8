#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source file names the licence in its first two lines, except the frozen headers of plug-ins and the examples that
# users copy.
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../../.."
missing=0
while read -r file; do
  case $file in
  *.[ch] | *.cc | *.hh | *.py | *.pyi | *.sh | *.awk | *.proto | Makefile | *.mk) ;;
  *) [[ $(head -c 2 "$file" | tr -d '\0') == '#!' ]] || continue ;;
  esac
  head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0' ||
    { echo "$file: its first two lines lack 'SPDX-License-Identifier: Apache-2.0'"; missing=1; }
done < <(find .ci Makefile backends client daemon proto systemd tests -type f -not -path 'tests/abi/v1/*' -not -path 'tests/examples/*' -not -path 'tests/fuzz/corpus/*' -not -name '*.pyc')
exit $missing
