#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make install` installs everything that users need, each installed header compiles alone, and `make uninstall` removes all
# of it.
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "$*"; exit 1; }

dest=$tmp/root
make --no-print-directory install DESTDIR="$dest" PREFIX=/usr/local >"$tmp/log" ||
  { cat "$tmp/log"; fail "make install failed"; }

(cd "$dest" && find . -type f -o -type l | sort | cut -c3-) >"$tmp/found"
expected=(
  etc/rdtd/rdtd.conf
  usr/local/bin/rdt{-check-backend,ctl,d,d-keeper}
  usr/local/include/rdt/{rdt,rdt_backend,rdt_delta,rdt_devices,rdt_dtype,rdt_follow,rdt_groups,rdt_info,rdt_many,rdt_plan,rdt_plugin,rdt_put_flags,rdt_ref,rdt_status}.h
  usr/local/lib/librdt.so{,.0,.0.1.0}
  usr/local/lib/pkgconfig/rdt.pc
  usr/local/lib/rdtd/rdt_{host,stream,ucx}.so
  usr/local/lib/systemd/system/rdtd{.service,.socket,-keeper.service}
  usr/local/lib/sysusers.d/rdtd.conf
  usr/local/share/doc/rdtd/{LICENSE,CHANGELOG.md,rdtd-grafana.json}
)
if command -v scdoc >/dev/null; then
  expected+=(usr/local/share/man/man1/rdtctl.1 usr/local/share/man/man3/librdt.3 usr/local/share/man/man5/rdtd.conf.5
    usr/local/share/man/man7/rdt-{backend,concepts,container,engines,gpu,network,python,ray}.7 usr/local/share/man/man8/{rdtd,rdtd-etcd,rdtd-exporter,rdtd-keeper}.8)
fi
for file in "${expected[@]}"; do grep -qx "$file" "$tmp/found" || fail "not installed: $file"; done
# What is there only when its source or its library is.
optional='^usr/local/(bin/rdtd-(exporter|etcd)|lib/systemd/system/rdtd-exporter\.service|lib/python3[0-9.]*/dist-packages/rdtd(/[a-z_]+\.[a-z0-9._-]+|-0\.1\.0\.dist-info/(METADATA|INSTALLER|entry_points\.txt))|lib/rdtd/rdt_[a-z]+\.so|lib/librdt-cuda\.so(\.[0-9.]+)?|lib/pkgconfig/rdt-cuda\.pc|include/rdt/rdt_cuda\.h|share/man/man[1-8]/.*|share/bash-completion/completions/rdtctl)$'
while read -r file; do
  [[ " ${expected[*]} " == *" $file "* || $file =~ $optional ]] || fail "installed, but nobody expects it: $file"
done <"$tmp/found"
if grep -rn '@[a-z]*@' "$dest/etc" "$dest"/usr/local/lib/{pkgconfig,systemd,sysusers.d}; then fail "a placeholder was not filled in"; fi

# The Python package, for the Python that it was built for.
for module in "$dest"/usr/local/lib/python3*/dist-packages/rdtd; do
  [[ -e $module ]] || continue
  python=${PYTHON:-/usr/bin/python3}
  (cd "$tmp" && PYTHONPATH=${module%/rdtd} PYTHONDONTWRITEBYTECODE=1 "$python" -c 'import rdtd; print(rdtd.__version__, rdtd.__file__)') |
    grep -qF "0.1.0 $module/" || fail "the Python package was installed, but cannot be imported"
  found=$("$python" -c 'import importlib.metadata as m, sys; (d,) = m.distributions(name="rdtd", path=[sys.argv[1]]); print(d.version)' "${module%/rdtd}") || true
  [[ $found == 0.1.0 ]] || fail "the Python package was installed, but importlib.metadata does not see it"
  if command -v pip >/dev/null; then
    found=$(pip list --path "${module%/rdtd}" 2>/dev/null)
    [[ $found =~ rdtd\ +0\.1\.0 ]] || fail "pip list does not see the Python package: $found"
  fi
done

# Each header alone, in C and, where there is a compiler for it, in C++.
export PKG_CONFIG_PATH=$dest/usr/local/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dest
cflags=$(pkg-config --cflags rdt)
[[ $cflags == *"$dest/usr/local/include/rdt"* ]] || fail "pkg-config --cflags rdt: $cflags"
[[ $(pkg-config --modversion rdt) == 0.1.0 ]] || fail "pkg-config --modversion rdt: $(pkg-config --modversion rdt)"
for header in "$dest"/usr/local/include/rdt/*.h; do
  # shellcheck disable=SC2086
  echo "#include <${header##*/}>" | gcc -std=c11 -Wall -Wextra -Wpedantic -Werror $cflags -fsyntax-only -x c -
  if command -v g++ >/dev/null; then
    # shellcheck disable=SC2086
    echo "#include <${header##*/}>" | g++ -std=c++17 -Wall -Wextra -Werror $cflags -fsyntax-only -x c++ -
  fi
done

# Each file is in a Debian package, as a line of systemd/debian/*.install says.
mapfile -t packed < <(cat systemd/debian/*.install |
  sed -E 's, .*,,; s,^(usr/)?lib/(\*/)?,usr/local/lib/,; s,^usr/([^l]),usr/local/\1,; s,python3/,python3*/,')
while read -r file; do
  [[ $file != */share/doc/rdtd/@(LICENSE|CHANGELOG.md) ]] || continue
  for pattern in "${packed[@]}"; do
    # shellcheck disable=SC2053
    [[ $file != $pattern && $file != $pattern/* ]] || continue 2
  done
  fail "no systemd/debian/*.install names $file"
done <"$tmp/found"

# The Debian packages build with what .ci/deps installs for a build.
for package in $(sed -n '/^packages=(/,/^)/{s/#.*//;/[()]/!p}' .ci/deps); do
  [[ $package == @(gcc|g++|libc6-dev|make) ]] || grep -qE "^(Build-Depends:)? +$package,?\$" systemd/debian/control ||
    fail "systemd/debian/control does not build-depend on $package"
done

# The symbols files of the Debian packages list what the libraries show: all of it, and nothing else. Programs need it for ever.
for library in librdt librdt-cuda; do
  file=$dest/usr/local/lib/$library.so.0
  [[ -e $file ]] || continue
  nm -D --defined-only "$file" | sed -n 's/.* [TDRB] \([^@]*\).*/\1/p' | sort >"$tmp/shown"
  sed -nE 's/^ (rdt_[a-z0-9_]*)@RDT_[A-Z]*_?0 [0-9.]+$/\1/p' "systemd/debian/${library}0.symbols" | sort >"$tmp/listed"
  lost=$(comm -13 "$tmp/shown" "$tmp/listed")
  [[ -z $lost ]] || fail "$library.so lacks what systemd/debian/${library}0.symbols lists: $lost"
  new=$(comm -23 "$tmp/shown" "$tmp/listed")
  [[ -z $new ]] || fail "systemd/debian/${library}0.symbols lacks what $library.so shows: $new"
done

# A second installation keeps the administrator's configuration.
echo '# mine' >"$dest/etc/rdtd/rdtd.conf"
make --no-print-directory install DESTDIR="$dest" PREFIX=/usr/local >"$tmp/log"
[[ $(cat "$dest/etc/rdtd/rdtd.conf") == '# mine' && -s $dest/etc/rdtd/rdtd.conf.new ]] ||
  fail "the configuration was overwritten"

make --no-print-directory uninstall DESTDIR="$dest" PREFIX=/usr/local >"$tmp/log"
left=$(cd "$dest" && find . -type f -o -type l | sort | tr '\n' ' ')
[[ $left == './etc/rdtd/rdtd.conf ./etc/rdtd/rdtd.conf.new ' ]] || fail "left by make uninstall: $left"
