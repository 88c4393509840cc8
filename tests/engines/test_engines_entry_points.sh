#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Engines find the modules of rdtd by entry points: in the build tree, in what `make install` installs, and in a wheel. All
# say what pyproject.toml says, and each names a function or class that exists, in a module that needs no engine to be imported.
# variant: release
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
compgen -G "$RDT_BUILD_DIR/python/rdtd/_rdt*.so" >/dev/null ||
  { echo "the Python package was not built (python3-dev)"; exit 77; }
python=${PYTHON:-/usr/bin/python3}
[[ -x $python ]] || python=python3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }

# entry_points FOLDER: those of the package there, one a line.
entry_points() {
  "$python" -I - "$1" <<'PYTHON'
import importlib.metadata, sys
(found,) = importlib.metadata.distributions(name="rdtd", path=sys.argv[1:])
print(*sorted(f"{one.group} {one.name} {one.value}" for one in found.entry_points), sep="\n")
PYTHON
}

wanted=$("$python" - <<'PYTHON'
import tomllib
groups = tomllib.load(open("client/python/pyproject.toml", "rb"))["project"].get("entry-points", {})
print(*sorted(f"{group} {name} {value}" for group, rows in groups.items() for name, value in rows.items()), sep="\n")
PYTHON
) || { echo "$python has no tomllib (Python 3.11)"; exit 77; }
found=$(entry_points "$RDT_BUILD_DIR/python")
[[ $found == "$wanted" ]] || fail "the build tree has other entry points: $found"

make --no-print-directory install DESTDIR="$dir/root" PREFIX=/usr/local >"$dir/log" ||
  { cat "$dir/log"; fail "make install failed"; }
for folder in "$dir"/root/usr/local/lib/python3*/*-packages; do
  found=$(entry_points "$folder")
  [[ $found == "$wanted" ]] || fail "make install installed other entry points in $folder: $found"
done
for wheel in build/wheels/rdtd-*.whl; do
  [[ -e $wheel ]] || continue
  found=$(entry_points "$wheel")
  [[ $found == "$wanted" ]] || fail "$wheel has other entry points: $found"
done

while read -r group name value && [[ $group ]]; do
  PYTHONPATH=$RDT_BUILD_DIR/python PYTHONDONTWRITEBYTECODE=1 "$python" - "$group" "$name" "$value" <<'PYTHON' || exit 1
import importlib.metadata, sys
group, name, value = sys.argv[1:]
(one,) = importlib.metadata.entry_points(group=group, name=name)
assert one.value == value, one
try:
    one.load()
except ImportError as error:  # of the engine itself, in a sentence that says what to install
    assert len(str(error).splitlines()) == 1 and "rdtd." in str(error), error
PYTHON
done <<<"$wanted"
