#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wheels of `make wheel` contain what they need: each is installed in a virtual environment where there is no rdtd, says
# without a daemon what is missing, and passes the tests of the package with one. $RDT_PYTHONS lists the Pythons, with blanks
# between them. numpy comes from PyPI.
# variant: release
# seconds: 1200
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
[[ -n ${RDT_PYTHONS:-} ]] ||
  { echo "no wheel was built: make test-wheel PYTHONS='python3.12 /opt/python3.13/bin/python3'"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }

alone='
import os, sys, rdtd
assert rdtd.__file__.startswith(sys.prefix), rdtd.__file__
try:
    rdtd.connect(socket=os.path.join(sys.prefix, "none.sock"))
except rdtd.Disconnected as e:
    assert "is the daemon running? set RDT_SOCKET" in str(e), e
else:
    sys.exit("connected to nothing")
'
status=0
for python in $RDT_PYTHONS; do
  version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || fail "$python is no Python"
  tag=cp$(cut -d. -f1,2 <<<"$version" | tr -d .)
  wheel=$(compgen -G "build/wheels/rdtd-*-$tag-$tag-*manylinux_2_28_*.whl") ||
    fail "make wheel made none for $tag: $(ls build/wheels)"
  "$python" -m venv "$dir/$tag" && "$dir/$tag/bin/pip" -q --disable-pip-version-check install --no-index "$wheel" || exit 1
  echo "$version: $(basename "$wheel")"
  (cd "$dir" && env -i "$dir/$tag/bin/python" -I -c "$alone") || fail "the wheel does not work alone"

  extension=$(compgen -G "$dir/$tag/lib/python*/site-packages/rdtd/_rdt.*.so") || fail "no extension was installed"
  others=$(readelf -d "$extension" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vxE 'lib(c|pthread|dl)\.so\.[0-9]+|ld-linux-[a-z0-9-]+\.so\.[0-9]+')
  [[ -z $others ]] || fail "the wheel needs $others"
  newest=$(readelf -V "$extension" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
  ((${newest#GLIBC_2.} <= 28)) || fail "the wheel needs $newest"

  "$dir/$tag/bin/pip" -q --disable-pip-version-check install numpy || exit 1
  for part in values buffers life names loops holds groups gpu; do
    PYTHONPATH=tests/python PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 timeout 120 "$dir/$tag/bin/python" \
      "tests/python/$part.py" >"$dir/out" 2>&1
    case $? in
    0 | 77) tail -n 1 "$dir/out" ;;
    *)
      cat "$dir/out"
      status=1
      ;;
    esac
  done
done
exit "$status"
