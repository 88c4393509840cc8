#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manual pages are true: their programs and commands run; the tests, commands, options, functions, statuses and
# sentences that they name exist; every command of rdtctl and every function of librdt has its entry; and mandoc reports
# nothing.
# variant: release
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
. tests/support/code_blocks.sh
dir=$(mktemp -d)
# shellcheck disable=SC2317
cleanup() { [[ -z ${daemon:-} ]] || { kill "$daemon"; wait "$daemon"; } 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
failed=0
bad() { echo "$*"; failed=1; }

pages=(daemon/{rdtd.8,rdtd-keeper.8,rdt-concepts.7,rdt-container.7}.scd daemon/config/rdtd.conf.5.scd daemon/peers/rdt-network.7.scd daemon/directory/rdtd-etcd.8.scd client/librdt.3.scd client/ctl/rdtctl.1.scd client/exporter/rdtd-exporter.8.scd
  client/python/rdt-{engines,python,ray}.7.scd backends/rdt-{backend,gpu}.7.scd)
for page in "${pages[@]}"; do [[ -e $page ]] || bad "the page $page is missing"; done
known=" ${pages[*]} "
for page in $(find daemon client backends proto -name '*.scd'); do
  [[ $known == *" $page "* ]] || bad "$page is not in the list of $0"
done

# ---- form ----

if command -v scdoc >/dev/null && command -v mandoc >/dev/null; then
  for page in "${pages[@]}"; do
    page=$RDT_BUILD_DIR/man/$(basename "$page" .scd)
    [[ -s $page ]] || { bad "$page was not made"; continue; }
    mandoc -T lint "$page" >"$dir/lint" || failed=1
    [[ ! -s $dir/lint ]] || bad "$(cat "$dir/lint")"
  done
  # What a reader sees of a program is the program.
  for page in "${pages[@]}"; do
    mandoc -T utf8 -O width=300 "$RDT_BUILD_DIR/man/$(basename "$page" .scd)" |
      LC_ALL=C.UTF-8 sed -E 's/.\x08//g' | expand | sed -E 's/^ +//' >"$dir/seen"
    while IFS= read -r line; do
      grep -qxF -- "$line" "$dir/seen" || bad "$page shows a line of a program otherwise: $line"
    done < <(awk '/^```/ {code = !code; next} code && NF {print}' "$page" | expand | sed -E 's/^ +//')
  done
else
  echo "scdoc or mandoc is not installed: the form of the pages was not checked"
fi

# ---- names ----

start_daemon "$dir" || exit 1
for page in "${pages[@]}"; do
  named_commands "$page" || failed=1
  named_tests "$page" || failed=1
done
(($(grep -cE '::' daemon/rdt-concepts.7.scd) > 60)) || bad "rdt-concepts(7) does not name the tests of the promises"

# A name like some_key in bold or beside an equals sign is a key of the configuration, or a name of the interfaces.
config=$(rdtd --config= --dump-config | grep -oE '^[a-z_]+')
for page in "${pages[@]}"; do
  for word in $(grep -ohE '\*[a-z]+(_[a-z]+)+( = [^*]*)?\*' "$page" | tr -d '*' | sed 's/ =.*//' | sort -u); do
    grep -qx "$word" <<<"$config" ||
      grep -rqw -- "$word" client/*.h client/cuda/*.h client/python/rdtd backends/*.h proto/rdt_*.h ||
      [[ $page == */rdt-backend* || $page == */rdtd-exporter* ]] ||
        bad "$page names $word, which is neither a key nor a function"
  done
done

# rdtd-exporter(8) has every metric, and no others.
page=$RDT_BUILD_DIR/man/rdtd-exporter.8
if [[ -s $page ]]; then
  paged=$(grep -oE '\\fB(rdtd|process)_[a-z_]+' "$page" | sed 's/^\\fB//' | sort)
  metrics=$(rdtctl metrics --format prometheus | awk '/^# TYPE/ {print $3}' | sort)
  [[ $metrics == "$paged" ]] || bad "rdtd-exporter(8) and rdtctl metrics differ: $(diff <(echo "$paged") <(echo "$metrics"))"
fi

# Words of a page, without the marks of its source.
words() { sed -e 's/\\//g; s/[*]//g' "$1"; }
words client/ctl/rdtctl.1.scd >"$dir/rdtctl"
for command in $(rdtctl --help | awk '/^commands:/ {on = 1; next} /^$/ {on = 0} on {print $1}'); do
  grep -qE "^(\*[a-z]+\*, )*\*$command\b" client/ctl/rdtctl.1.scd || bad "rdtctl(1) does not have the command $command"
  for option in $(rdtctl "$command" --help | grep -oE '^  +(-[a-zA-Z], )?--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
    grep -qE -- "(^|[^a-z-])$option([^a-z-]|$)" "$dir/rdtctl" || bad "rdtctl(1) does not have $option of $command"
  done
done
words daemon/rdtd.8.scd >"$dir/rdtd"
for option in $(rdtd --help | sed '/^\[/,$d' | grep -oE '^  --[a-z-]+' | tr -d ' '); do
  grep -qE -- "(^|[^a-z-])$option([^a-z-]|$)" "$dir/rdtd" || bad "rdtd(8) does not have $option"
done
page=$RDT_BUILD_DIR/man/librdt.3
for function in $(nm -D --defined-only "$RDT_BUILD_DIR/librdt.so" | sed -nE 's/.* T ([^@]+).*/\1/p'); do
  [[ ! -s $page ]] || grep -q "\b$function()" "$page" || bad "librdt(3) does not have $function()"
done
for function in $(grep -oE '\brdt_[a-z0-9_]+\(' client/librdt.3.scd | tr -d '(' | sort -u); do
  grep -qE "\b$function\(" client/rdt*.h client/cuda/rdt*.h proto/rdt_*.h ||
    bad "librdt(3) names $function(), which does not exist"
done

# ---- statuses and sentences ----

errors=$(awk '/^# ERRORS/ {on = 1; next} /^#/ {on = 0} on && /^\*/' client/librdt.3.scd | grep -oE '[A-Z_]{3,}')
for status in $errors; do
  grep -qE "X\(-?[0-9]+, $status," proto/rdt_status.h || bad "librdt(3) names the status $status, which does not exist"
done
for status in $(grep -oE 'X\(-[0-9]+, [A-Z_]+,' proto/rdt_status.h | grep -oE '[A-Z_]{3,}'); do
  grep -qx "$status" <<<"$errors" || bad "librdt(3) does not explain the status $status"
done
count=0
while IFS= read -r phrase; do
  count=$((count + 1))
  grep -rqF --include='*.[ch]' -e "$phrase" daemon client backends proto ||
    bad "librdt(3) names the words '$phrase', which nothing says"
done < <(awk '/^## Common sentences/ {on = 1; next} /^#/ {on = 0} on && /^\*/ {gsub(/[*\\]/, ""); print}' client/librdt.3.scd)
((count > 20)) || bad "librdt(3) lists no sentences"

# ---- programs and commands ----

for page in "${pages[@]}"; do check_blocks "$page" || failed=1; done
exit $failed
