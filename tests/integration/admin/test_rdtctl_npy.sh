#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl and npy files, written by hand and, if it is installed, by numpy: put and fetch, conversion between formats, and
# refusals.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
rdtctl=$RDT_BUILD_DIR/rdtctl
dir=$(mktemp -d)
export RDT_SOCKET=$dir/s
pids=()
trap '{ kill -KILL "${pids[@]}"; wait; } 2>/dev/null; rm -rf "$dir"' EXIT

# status WANTED COMMAND ...: runs it, keeps its output in $dir/out.
status() {
  local want=$1 got
  shift
  "$@" >"$dir/out" 2>&1
  got=$?
  [[ $got == "$want" ]] || bad "$*: status $got, expected $want: $(cat "$dir/out")"
}
says() { grep -qF -- "$1" "$dir/out" || bad "'$1' is not in: $(cat "$dir/out")"; }

serve "$RDT_SOCKET" "$dir/log" --state-dir "$dir"
pids+=("$daemon")

# npy FILE DICTIONARY DATA: version 1.0, without the padding that numpy adds
npy() {
  local length
  printf -v length '\\x%02x\\x%02x' $((${#2} & 255)) $((${#2} >> 8))
  printf '%b%s%s' "\x93NUMPY\x01\0$length" "$2" "$3" >"$1"
}
put() { # FILE [ID]: offers it; the ref into $ref
  exec {refs}< <(exec "$rdtctl" put -q "$1" ${2:+--id "$2"} 2>"$dir/actor")
  pids+=($!)
  read -r -t 30 -u "$refs" ref || bad "put $1: no ref: $(cat "$dir/actor")"
  exec {refs}<&-
}
data() { tail -c "$2" "$1"; }

# ---- there and back ----

npy "$dir/rows.npy" "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }" 'aAbBcCdDeEfF'
put "$dir/rows.npy"
for mode in auto share copy; do
  status 0 "$rdtctl" fetch "$ref" --timeout 20s -o "$dir/out.npy" --mode "$mode"
  says '1 tensor, 12 B'
  [[ $(data "$dir/out.npy" 12) == aAbBcCdDeEfF && $(stat -c %s "$dir/out.npy") == 140 ]] || bad "mode $mode: other bytes"
  cp "$dir/out.npy" "$dir/first.npy"
done
put "$dir/first.npy" again # what it wrote is read as well, and comes back the same
status 0 "$rdtctl" fetch again --timeout 20s -o "$dir/out.npy"
cmp "$dir/first.npy" "$dir/out.npy" || bad 'a second round changed the file'

npy "$dir/columns.npy" "{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3), }" 'aAdDbBeEcCfF'
put "$dir/columns.npy" columns
for mode in share copy; do
  status 0 "$rdtctl" fetch "$ref" --timeout 20s -o "$dir/out.npy" --mode "$mode"
  cmp "$dir/first.npy" "$dir/out.npy" || bad "mode $mode: the columns became something else"
done

npy "$dir/scalar.npy" "{'descr': '|b1', 'fortran_order': False, 'shape': (), }" 'T'
put "$dir/scalar.npy" scalar
status 0 "$rdtctl" fetch scalar --timeout 20s -o "$dir/out.npy"
grep -qaF "{'descr': '|b1', 'fortran_order': False, 'shape': (), }" "$dir/out.npy" || bad 'the scalar has another header'
npy "$dir/none.npy" "{'descr': '<c16', 'fortran_order': True, 'shape': (0, 7), }" ''
put "$dir/none.npy" none
status 0 "$rdtctl" fetch none --timeout 20s -o "$dir/out.npy"
grep -qaF "{'descr': '<c16', 'fortran_order': False, 'shape': (0, 7), }" "$dir/out.npy" ||
  bad 'the empty one has another header'

# ---- between the formats ----

status 0 "$rdtctl" fetch columns --timeout 20s -o "$dir/out.safetensors"
grep -qaF '"0":{"dtype":"U16","shape":[2,3],"data_offsets":[0,12]}' "$dir/out.safetensors" || bad 'npy became other safetensors'
put "$dir/out.safetensors" named
status 0 "$rdtctl" fetch named --timeout 20s -o "$dir/out.NPY"
cmp "$dir/first.npy" "$dir/out.NPY" || bad 'safetensors became another npy'

safetensors() { # FILE HEADER DATA
  local length
  printf -v length '\\x%02x\\x%02x' $((${#2} & 255)) $((${#2} >> 8))
  printf '%b%s%s' "$length\0\0\0\0\0\0" "$2" "$3" >"$1"
}
safetensors "$dir/two.safetensors" '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}' xy
put "$dir/two.safetensors" two
status 1 "$rdtctl" fetch two --timeout 20s -o "$dir/never.npy"
says 'never.npy: the object has 2 tensors, an npy file holds one: give -o a name that does not end in .npy'
safetensors "$dir/bf16.safetensors" '{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}' xy
put "$dir/bf16.safetensors" bf16
status 1 "$rdtctl" fetch bf16 --timeout 20s -o "$dir/never.npy"
says 'give -o a name that does not end in .npy: an npy file cannot hold bf16'
compgen -G "$dir/never*" >/dev/null && bad 'a refusal left a file'

# ---- refusals ----

npy "$dir/bad" "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" 'cos'
status 1 "$rdtctl" put "$dir/bad" # known by its magic
says 'bad: dtype '"'|O'"' is Python objects'
printf 'no npy' >"$dir/bad.npy" # known by its name
status 1 "$rdtctl" put "$dir/bad.npy"
says 'bad.npy: it does not begin as an npy file does'
printf 'PK\3\4' >"$dir/bad.npz"
status 1 "$rdtctl" put "$dir/bad.npz"
says 'unpack it'
npy "$dir/bad.npy" "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000,), }" 'short'
status 1 "$rdtctl" put "$dir/bad.npy"
says 'truncated: dtype and shape make 8000000000 bytes, the file has 5'

# ---- numpy's own ----

if python3 -c 'import numpy' 2>/dev/null; then
  python3 - "$dir" <<'END' || bad 'numpy could not write'
import sys, numpy
for i, dtype in enumerate('?bBhHiIqQefdFD'):
    array = numpy.arange(60).reshape(3, 4, 5).astype(dtype)
    if i % 2:
        array = numpy.asfortranarray(array)
    numpy.lib.format.write_array(open(f'{sys.argv[1]}/numpy{i}.npy', 'wb'), array, version=(1 + i % 3, 0))
END
  for file in "$dir"/numpy*.npy; do
    put "$file"
    status 0 "$rdtctl" fetch "$ref" --timeout 20s -o "$file.back.npy" --mode copy
  done
  python3 - "$dir" <<'END' || bad 'numpy reads something else back'
import sys, glob, numpy
files = glob.glob(sys.argv[1] + '/numpy*.back.npy')
assert len(files) == 14, files
for file in files:
    here, there = numpy.load(file[:-9]), numpy.load(file)
    assert here.dtype == there.dtype and (here == there).all() and there.flags.c_contiguous, file
END
else
  echo 'python3-numpy is not here: its own files were not tried'
fi

((failures == 0))
