#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# README keeps its limits of length, its programs run, the files and commands that it names exist, and its picture is the
# one that its script draws. (test_first_program, test_python_readme and test_ray run its programs in C, Python and Ray.)
# variant: release
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
. tests/support/code_blocks.sh
[[ -e README.md ]] || { echo "no README.md here"; exit 77; }
dir=$(mktemp -d)
# shellcheck disable=SC2317
cleanup() { [[ -z ${daemon:-} ]] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
failed=0
bad() { echo "$*"; failed=1; }

(($(wc -l <README.md) <= 250)) || bad "README.md has $(wc -l <README.md) lines, more than 250"
long=$(awk 'length > 110 {print FNR}' README.md | tr '\n' ' ')
[[ -z $long ]] || bad "README.md: lines of more than 110 columns: $long"
tests/demo/picture.sh | cmp -s - tests/demo/rdtd.svg || bad "tests/demo/rdtd.svg is not what tests/demo/picture.sh draws"

for page in README.md daemon/ARCHITECTURE.md tests/README.md tests/bench/README.md tests/bench/DECISIONS.md; do
  [[ -e $page ]] || { bad "$page is missing"; continue; }
  for link in $(grep -oE '\]\([^)#:]+' "$page" | cut -c3-); do
    [[ -e $(dirname "$page")/$link ]] || bad "$page links to $link, which does not exist"
  done
done
for page in $(grep -oE '\b(rdt[a-z-]*|librdt)(\.conf)?\([1-8]\)' README.md daemon/ARCHITECTURE.md | cut -d: -f2 | sort -u); do
  name=${page%(*} section=${page##*(} section=${section%)}
  [[ $name == rdtd.conf ]] || compgen -G "*/$name.$section.scd" >/dev/null || compgen -G "*/*/$name.$section.scd" >/dev/null ||
    bad "README.md or daemon/ARCHITECTURE.md names the page $page, which does not exist"
done

squattable=$(grep -rnE '(--socket[ =]|RDT_SOCKET=|socket=|connect\()["'"'"']?/tmp/' README.md client daemon backends tests/examples tests/demo systemd \
  --include='*.md' --include='*.scd' --include='*.py' --include='*.c' --include='*.h' --include='*.sh' --include='*.yaml')
[[ -z $squattable ]] || bad "others can put a socket of their own into /tmp first: $squattable"

start_daemon "$dir" || exit 1
named_commands README.md || failed=1
named_tests README.md || failed=1
config=$(rdtd --config= --dump-config)
for key in $(grep -oE '`[a-z]+(_[a-z]+)+`' README.md | tr -d '`' | sort -u); do
  [[ $key == shared_memory ]] || grep -qE "^$key =( |\$)" <<<"$config" || bad "README.md names the key $key, which does not exist"
done
for module in $(grep -oE '\brdtd\.[a-z]+\.' README.md | sort -u); do
  grep -qE "import .*\b${module%.}\b" README.md || bad "README.md does not say that ${module%.} must be imported"
done
[[ $(sed -n 's/.*| version | \([0-9.]*\),.*/\1/p' README.md) == "$(rdtd --version | cut -d' ' -f2)" ]] ||
  bad "README.md has another version than rdtd"
check_blocks README.md || failed=1
exit $failed
