#!/usr/bin/env bash
# Every test that README names as the proof of a promise exists, and every error and every key that it tells of; every status there is, and every
# key that limits something, is told of, with its default.
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../../.."
[[ -e README.md ]] || { echo "no README.md here"; exit 77; }
missing=0
say() { echo "README.md names $1, which does not exist"; missing=1; }

tests=$(grep -oE '`[a-z_]+::[a-z_0-9]+`' README.md | tr -d '\`' | sort -u)
(($(wc -l <<<"$tests") > 20)) || { echo "README.md names no tests"; exit 1; }
for test in $tests; do
  grep -qE "^Test\\(${test%%::*}, ${test##*::}[,)]" tests/*/*.c tests/*/*/*.c || say "the test $test"
done
for status in $(awk '/^## Errors/ {on = 1; next} /^###? / {on = 0} on && /^\| `/ {sub(/^\| /, ""); sub(/ \|.*/, ""); gsub(/[`,]/, ""); print}' README.md); do
  grep -qE "X\\(-?[0-9]+, $status," proto/rdt_status.h || say "the status $status"
done
for status in $(grep -oE 'X\(-[0-9]+, [A-Z_]+,' proto/rdt_status.h | grep -oE '[A-Z_]{3,}'); do
  grep -qE "^\| (\`[A-Z_]+\`, )*\`$status\`" README.md || { echo "README.md does not tell of the status $status"; missing=1; }
done

words=0
while IFS= read -r phrase; do
  words=$((words + 1))
  grep -rqF -- "$phrase" daemon client backends proto || say "the words '$phrase'"
done < <(awk '/^### By their words/ {on = 1; next} /^## / {on = 0} on && /^\| `/ {sub(/^\| `/, ""); sub(/` \|.*/, ""); print}' README.md)
((words > 20)) || { echo "README.md lists no words"; exit 1; }

# "| `key`, `key` | default, default: ... |", as the daemon has them
config=$(env -i LC_ALL=C "$RDT_BUILD_DIR/rdtd" --config= --backend-dir= --dump-config)
told=$(awk '/^## Limits/ {on = 1; next} /^Built in/ {on = 0} on && /^\| `/' README.md | awk -F' [|] ' '{
  gsub(/[|` ]/, "", $1); sub(/:.*/, "", $2); gsub(/ /, "", $2)
  n = split($1, keys, ","); split($2, values, ",")
  for (i = 1; i <= n; i++) print keys[i] " = " values[i]}')
while IFS= read -r line; do
  grep -qxF -- "$line" <<<"$config" || say "the default '$line'"
done <<<"$told"
for key in $(awk '/^\[/ {on = $0 == "[limits]"} (on || /^max_/) && /^[a-z_]+ = / {print $1}' <<<"$config"); do
  grep -q "^$key = " <<<"$told" || { echo "README.md does not tell of $key"; missing=1; }
done
exit $missing
