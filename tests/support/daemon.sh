# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by test scripts: counts failures, waits for conditions, and starts daemons.

failures=0
bad() { echo "FAILED: $*"; failures=$((failures + 1)); }

# until_true COMMAND ...: repeats the command, whose output is dropped, until it succeeds; a failure if it does not within a
# minute.
until_true() {
  local deadline=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { bad "not true in time: $*"; return 1; }
    sleep 0.02
  done
}

# answers SOCKET PID: the daemon answers there, or has ended.
answers() { "$RDT_BUILD_DIR/rdtctl" --socket "$1" ping -q --timeout 1s || ! kill -0 "$2"; }

# serve SOCKET LOG FLAG ...: starts the built rdtd, whose pid is $daemon then, and waits until it answers. If it does not, the
# script ends with the log, to which the daemon appends. Without --config among the flags there is no configuration file.
serve() {
  local config=--config=
  [[ " ${*:3}" != *' --config'[\ =]* ]] || config=
  "${in_daemon[@]}" "$RDT_BUILD_DIR/rdtd" $config --socket "$1" --backend-dir "$RDT_BUILD_DIR/backends" "${@:3}" \
    </dev/null >>"$2" 2>&1 &
  daemon=$!
  until_true answers "$1" "$daemon" && kill -0 "$daemon" 2>/dev/null && return
  echo "the daemon does not start: $(cat "$2")"
  exit 1
}
in_daemon=() # a command before rdtd, as `unshare --net`
