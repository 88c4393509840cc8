# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the tests of the manual: extracts the code blocks of a page and runs them. The line before each block says what
# it is: `; KIND` in a page's source, `<!-- KIND -->` in Markdown. The kinds:
#   sh           runs in a folder of its own, with a daemon at $RDT_SOCKET and rdtd, rdtctl and rdt-check-backend on $PATH
#   c, c run     compiles without a warning; `c run` also runs beside that daemon
#   c cuda       compiles with rdt_cuda.h
#   python run   runs; the other kinds of Python must at least compile
#   text WHY     is no program, or cannot run here
#   (others)     belong to other tests

# shellcheck source=/dev/null
. "${BASH_SOURCE%/*}/daemon.sh"

# blocks FILE DIR: writes the blocks to DIR/LINE, each with its kind in DIR/LINE.kind; prints the lines of blocks without a
# kind.
blocks() {
  awk -v dir="$2" '
    /^; / || /^<!-- .* -->$/ { kind = $0; sub(/^(; |<!-- )/, "", kind); sub(/ -->$/, "", kind); at = NR; next }
    /^```/ && !inside {
      inside = 1; file = sprintf("%s/%04d", dir, NR)
      if (at != NR - 1) print NR
      print kind >(file ".kind"); close(file ".kind"); printf "" >file; next
    }
    /^```/ { inside = 0; close(file); next }
    inside { print >file }' "$1"
}

# start_daemon DIR: a daemon for the blocks, in $daemon.
start_daemon() {
  export RDT_SOCKET=$1/s RDTD_BACKEND_DIR=$RDT_BUILD_DIR/backends PATH=$RDT_BUILD_DIR:$PATH LD_LIBRARY_PATH=$RDT_BUILD_DIR
  export PYTHONPATH=$RDT_BUILD_DIR/python PYTHONDONTWRITEBYTECODE=1
  serve "$RDT_SOCKET" "$1/log" --state-dir ''
}

# run_block FILE KIND SOURCE_TREE: in an empty current folder; 77: nothing here could run it.
run_block() {
  local python=${PYTHON:-/usr/bin/python3}
  local compile=(gcc -std=c11 -Wall -Wextra -Werror -I "$3/client" -I "$3/proto" -I "$3/client/cuda" -x c "$1")
  case $2 in
  sh) timeout 60 setsid bash -c 'trap "jobs -p | xargs -r kill 2>/dev/null; wait" EXIT; set -e; . "$1"' sh "$1" ;;
  'c run') "${compile[@]}" -o program -L "$RDT_BUILD_DIR" -lrdt && timeout 30 ./program ;;
  c | 'c cuda') "${compile[@]}" -fsyntax-only ;;
  'python run')
    "$python" -c 'import numpy, rdtd' 2>/dev/null || return 77
    cp "$1" program.py && timeout 60 "$python" program.py
    ;;
  python*) "$python" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$1" ;;
  *) return 0 ;;
  esac
}

# check_blocks PAGE: every block of the page has a kind and runs. Needs start_daemon; says what fails.
check_blocks() {
  local page=$1 tree=$PWD dir lines file kind status failed=0
  dir=$(mktemp -d)
  lines=$(blocks "$page" "$dir")
  [[ -z $lines ]] || { echo "$page: the code block in line ${lines//$'\n'/, } does not say what it is"; failed=1; }
  for file in "$dir"/*.kind; do
    [[ -e $file ]] || break
    kind=$(<"$file") file=${file%.kind} status=0
    mkdir "$file.d"
    (cd "$file.d" && run_block "$file" "$kind" "$tree") >"$file.out" 2>&1 || status=$?
    if ((status == 77)); then
      echo "$page: the block in line ${file##*/} ($kind) was not run: something that it needs is missing here"
    elif ((status)); then
      echo "$page: the block in line ${file##*/} ($kind) fails with status $status:"; cat "$file.out"; failed=1
    fi
  done
  rm -rf "$dir"
  return $failed
}

# named_commands FILE: each `rdtctl COMMAND` and `make TARGET` that the text names exists.
named_commands() {
  local name failed=0 commands
  commands=$(rdtctl --help | awk '/^commands:/ {on = 1; next} /^$/ {on = 0} on {print $1}')
  for name in $(grep -oE '(^|[ `*(|])rdtctl [a-z]+(-[a-z]+)*' "$1" | awk '{print $NF}' | sort -u); do
    [[ $name =~ ^(shows|is|and|or|fetch|are|calls|talks|in)$ ]] || grep -qx "$name" <<<"$commands" ||
      { echo "$1 names rdtctl $name, which does not exist"; failed=1; }
  done
  for name in $(grep -oE '[`*(]make [a-z-]+' "$1" | awk '{print $NF}' | sort -u); do
    grep -qhE "^([a-z -]+ )?$name( [a-z -]+)?:|^BEGIN .*\<$name\>" Makefile ./*/rules.mk ./*/*/rules.mk || { echo "$1 names make $name, which does not exist"; failed=1; }
  done
  return $failed
}

# named_tests FILE: each SUITE::CASE that the text names exists.
named_tests() {
  local test failed=0
  for test in $(grep -oE '\b[a-z_0-9]+::[a-z_0-9]+' "$1" | sort -u); do
    grep -qE "^Test\\(${test%%::*}, ${test##*::}[,)]" tests/*/*.c tests/*/*/*.c ||
      { echo "$1 names the test $test, which does not exist"; failed=1; }
  done
  return $failed
}
