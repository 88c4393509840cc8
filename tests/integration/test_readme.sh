#!/usr/bin/env bash
# Every test that README names as the proof of a promise exists, and so does every error and every key of the configuration it tells of.
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ -e README.md ]] || { echo "no README.md here"; exit 77; }
missing=0
say() { echo "README.md names $1, which does not exist"; missing=1; }

tests=$(grep -oE '`[a-z_]+::[a-z_0-9]+`' README.md | tr -d '\`' | sort -u)
(($(wc -l <<<"$tests") > 20)) || { echo "README.md names no tests"; exit 1; }
for test in $tests; do
  grep -qE "^Test\\(${test%%::*}, ${test##*::}[,)]" tests/*/*.c || say "the test $test"
done
for status in $(awk '/^## Errors/ {on = 1; next} /^## / {on = 0} on && /^\| `/ {sub(/^\| /, ""); sub(/ \|.*/, ""); gsub(/[`,]/, ""); print}' README.md); do
  grep -qE "X\\(-?[0-9]+, $status," proto/rdt_status.h || say "the status $status"
done
exit $missing
