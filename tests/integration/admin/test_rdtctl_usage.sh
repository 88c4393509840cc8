#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl without a daemon: its help, wrong usage, exit statuses, and errors as JSON.
set -uo pipefail
rdtctl=$RDT_BUILD_DIR/rdtctl
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset RDT_SOCKET
failures=0

# expect STATUS STDOUT_PATTERN STDERR_PATTERN ARGUMENTS ...: patterns are extended regexps, '' is "nothing at all".
expect() {
  local want=$1 out_pattern=$2 err_pattern=$3 status
  shift 3
  "$rdtctl" "$@" >"$dir/out" 2>"$dir/err" </dev/null
  status=$?
  if [[ $status != "$want" ]] || ! matches "$out_pattern" "$dir/out" || ! matches "$err_pattern" "$dir/err"; then
    echo "rdtctl $*: status $status, expected $want, '$out_pattern' on stdout, '$err_pattern' on stderr; got:"
    sed 's/^/  stdout: /' "$dir/out"
    sed 's/^/  stderr: /' "$dir/err"
    failures=$((failures + 1))
  fi
}

matches() { if [[ -z $1 ]]; then [[ ! -s $2 ]]; else grep -qE -- "$1" "$2"; fi; }

expect 2 '' '^usage: rdtctl COMMAND'
expect 0 '^usage: rdtctl COMMAND' '' --help
expect 0 '^usage: rdtctl COMMAND' '' help
expect 0 '^rdtctl [0-9]+\.[0-9]+\.[0-9]+$' '' --version
expect 2 '' "unknown command 'frobnicate'\$" frobnicate
expect 2 '' "unknown command 'stauts'; did you mean status\?$" stauts
expect 2 '' "unknown command 'frobnicate'" help frobnicate
expect 2 '' 'the command comes first: rdtctl transfers 1$' 1 transfers
expect 2 '' 'unknown option --josn; did you mean --json\?$' status --josn
expect 2 '' 'unknown option --forse=1; did you mean --force\?$' free x --forse=1
expect 3 '' 'cannot reach rdtd at /etc/passwd: it is no socket' --socket /etc/passwd status
expect 2 '' 'y.pt: .*the ending .pt .*--format safetensors' fetch x -o "$dir/y.pt"
expect 2 '' 'unknown option --frobnicate' --frobnicate status
expect 2 '' "--daemon-uid: 'rdtd' is not a whole number" ping --daemon-uid rdtd
expect 2 '' 'INVALID: --daemon-uid: 4294967295 is no uid' ping --daemon-uid 4294967295

# Every state that a transfer has in the daemon can be asked for. "ended" is shown as the outcome, and nobody sees "new" for long.
for state in $(sed -nE 's/^ *\[(TRANSFER|SERVE)_[A-Z]+\] = \{"([a-z]+)".*/\2/p' daemon/transfers/transfer.c daemon/transfers/serve/serve.c); do
  [[ $state == ended ]] || "$rdtctl" transfers --help | tr -d ' \n' | grep -qE "[f|]$state(\||--)" ||
    { echo "rdtctl transfers --state does not know the state $state"; failures=$((failures + 1)); }
done

commands=$("$rdtctl" help | sed -n '/^commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p')
for name in status ping objects regions clients peers backends transfers explain stat put fetch wait free names publish unpublish watch doctor log-level; do
  grep -qx "$name" <<<"$commands" || { echo "the overview lacks $name"; failures=$((failures + 1)); }
done
for name in $commands; do
  expect 0 "^usage: rdtctl $name" '' "$name" --help
  expect 0 '^ +--socket PATH' '' "$name" -h
  expect 0 "^usage: rdtctl $name" '' help "$name"
  expect 2 '' "rdtctl: $name: INVALID: unknown option --frobnicate" "$name" --frobnicate
  [[ $name == exists ]] || expect 2 '' "unexpected argument|needs |is none of|is neither" "$name" one two three four
  expect 2 '' "unknown option -Z" "$name" -Z
done

for name in explain stat put fetch wait publish; do expect 2 '' "rdtctl: $name: INVALID: needs " "$name"; done
for name in free unpublish; do expect 2 '' "rdtctl: $name: INVALID: give a .* or --prefix" "$name"; done
expect 2 '' 'needs a REF, or --name NAME' fetch -o "$dir/x"
expect 2 '' '--node needs --name' wait weights --node n1
expect 2 '' 'exclude each other' fetch weights --name weights -o "$dir/x"
expect 2 '' "--after needs a name, but 'weights' is an object" wait weights --after 3
expect 2 '' '--name: NAME must not be empty' stat --name ''
expect 2 '' 'the name is empty' unpublish ''
expect 2 '' 'the name has more than 128 bytes' publish "$(printf '%0129d' 0)" weights
expect 2 '' "'three' is none of objects, regions, clients, peers, backends, transfers, names, owners" watch names three
expect 2 '' 'publish ends at once' put "$dir/x" --publish weights --for 1s
expect 2 '' 'needs -o FILE' fetch weights
expect 2 '' '-o needs an argument' fetch weights -o
expect 2 '' '--socket needs an argument' status --socket
expect 2 '' '--json=yes takes no argument' status --json=yes
expect 2 '' "--timeout: 'soon' is not a time" status --timeout soon
expect 2 '' "--timeout: '-1' is not a time" status --timeout=-1
expect 2 '' "--timeout: '5 s' is not a time" status --timeout '5 s'
expect 2 '' "--limit: '-1' is not a whole number" objects --limit=-1
expect 2 '' "--limit: '99999999999999999999' is not a whole number" objects --limit 99999999999999999999
expect 2 '' "--mode: 'cow' is none of auto\|share\|copy" fetch weights -o "$dir/x" --mode cow
expect 2 '' "--visibility: 'a' is none of owner" put "$dir/x" --visibility a
expect 2 '' '--count must be' ping -c 0
expect 2 '' 'exclude each other' put "$dir/x" --hold --for 1s
expect 2 '' 'ttl needs --detached' put "$dir/x" --ttl 1s
expect 2 '' '--ttl: the time must be more than 0' put "$dir/x" --detached --ttl 0
expect 2 '' '--ttl: the time must be more than 0' publish weights o --ttl 0.1ns
expect 2 '' "'rdt:nonsense'" stat rdt:nonsense
expect 2 '"status": "INVALID"' 'is not a time' --json status --timeout soon

# No daemon: also with the option before the command.
nobody=$dir/nobody.sock
for name in status ping objects regions clients peers backends transfers 'explain 1' 'stat weights' 'wait weights' 'free weights' \
  names watch 'publish weights o' 'unpublish weights' 'wait --name weights'; do
  # shellcheck disable=SC2086
  expect 3 '' "^rdtctl: ${name%% *}: DISCONNECTED: .*$nobody" $name --socket "$nobody"
done
expect 3 '' 'DISCONNECTED' --socket "$nobody" status
expect 3 '"status": "DISCONNECTED"' 'DISCONNECTED' status --json --socket "$nobody"
expect 3 '' 'DISCONNECTED' fetch weights -o "$dir/out.safetensors" --socket "$nobody"
RDT_SOCKET=$nobody expect 3 '' "DISCONNECTED: .*$nobody" status
compgen -G "$dir/out.safetensors*" >/dev/null && { echo 'fetch left a file behind'; failures=$((failures + 1)); }

# Files are looked at before the daemon is.
expect 1 '' 'SYSTEM: .*No such file' put "$dir/missing.safetensors" --socket "$nobody"
printf 'hello' >"$dir/short.safetensors"
expect 1 '' 'INVALID: .*5 bytes are too short' put "$dir/short.safetensors" --socket "$nobody"
printf '\377\377\377\377\377\377\377\377{}' >"$dir/long.safetensors"
expect 1 '"message": ".*claims 18446744073709551615 bytes' 'INVALID' put --json "$dir/long.safetensors" --socket "$nobody"
printf '\002\000\000\000\000\000\000\000{}' >"$dir/empty.safetensors"
expect 3 '' 'DISCONNECTED' put "$dir/empty.safetensors" --socket "$nobody"

# An answer that cannot be written is no success.
"$rdtctl" help >/dev/full 2>/dev/null && { echo 'rdtctl help >/dev/full succeeded'; failures=$((failures + 1)); }

# The reason is told once, also if it is noticed while JSON is written. stdbuf loads a library before those of the sanitizers.
if [[ $RDT_VARIANT == release ]]; then
  stdbuf -o0 "$rdtctl" status --json --socket "$nobody" >/dev/full 2>"$dir/why"
  grep -q 'writing the output: No space left' "$dir/why" && (($(wc -l <"$dir/why") == 2)) ||
    { cat "$dir/why"; failures=$((failures + 1)); }
fi

((failures == 0))
