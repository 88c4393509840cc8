# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by scripts that test rdtctl: a folder $dir with the socket at which a daemon will listen, an end that kills the
# processes of $pids, and checks of what a command says.
. "$(dirname "${BASH_SOURCE[0]}")/../../support/daemon.sh"
rdtctl=$RDT_BUILD_DIR/rdtctl
dir=$(mktemp -d)
export RDT_SOCKET=$dir/s
pids=()
trap '{ kill -KILL "${pids[@]}"; wait; } 2>/dev/null; rm -rf "$dir"' EXIT

# status WANTED COMMAND ...: runs it, keeps its output in $dir/out and $dir/err.
status() {
  local want=$1 got
  shift
  "$@" >"$dir/out" 2>"$dir/err"
  got=$?
  [[ $got == "$want" ]] && return
  bad "$*: status $got, expected $want: $(cat "$dir/out" "$dir/err")"
}
says() { grep -qE -- "$1" "$dir/out" "$dir/err" || bad "'$1' is not in: $(cat "$dir/out" "$dir/err")"; }
