#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages build, lintian finds no fault, and apt installs them in a new Debian 12 under a running systemd, where
# tensors are put and fetched. An upgrade to the next version keeps the keeper and everything that it holds; what would lose
# objects leaves the old daemon running; and a purge leaves nothing.
#
# It takes some minutes and Debian's mirror, so only `make test-deb` runs it. The script's second half runs inside a container,
# as a unit: `test_packages.sh --inside`.
# variant: release
# seconds: 1500
set -euo pipefail
fail() { echo "$*"; exit 1; }

property() { systemctl show -p "$1" --value "${2:-rdtd.service}"; }
# runs PACKAGE_VERSION: the daemon that runs is of this version.
runs() { grep -q "\"version\": \"$1\"" <<<"$(rdtctl status --json --timeout 20s)" || fail "not version $1: $(rdtctl status)"; }
# same_objects WHEN: the object that was put and the name that was published are there, with their bytes.
same_objects() {
  rm -f /tmp/b.safetensors
  rdtctl fetch -q --timeout 20s "$(tail -n 1 /tmp/ref)" -o /tmp/b.safetensors || fail "the object is gone after $1: $(rdtctl status)"
  cmp <(tail -c 1000000 /tmp/a.safetensors) <(tail -c 1000000 /tmp/b.safetensors) || fail "the bytes differ after $1"
  python3 - <<'PY' || fail "the published name is gone after $1"
import rdtd
version, value = next(rdtd.connect().versions("policy", timeout=20))
assert (version, bytes(memoryview(value["w"]))) == (3, b"\3" * 100000), version
PY
}
# install FOLDER OPTIONS ...: what a user does with the packages of a folder; what apt says is in /tmp/apt.
install() {
  apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 "${@:2}" "/rdt-test/$1"/*.deb >/tmp/apt 2>&1 ||
    fail "apt-get install of $1 failed: $(cat /tmp/apt)"
}
# goes_on FOLDER WHY OPTIONS ...: an installation leaves the daemon running, and says why.
goes_on() {
  local pid folder=$1 why=$2
  shift 2
  pid=$(property MainPID)
  install "$folder" "$@"
  grep -q "goes on running, because.*$why" /tmp/apt || fail "apt does not say '$why': $(cat /tmp/apt)"
  [[ $(property MainPID) == "$pid" && $(property ActiveState) == active ]] || fail "the daemon was ended although $why"
}

reading='
import sys, rdtd
value = rdtd.connect().get(rdtd.Ref(sys.argv[1]))
print("mapped", flush=True)
sys.stdin.readline()
open("/tmp/read", "wb").write(bytes(memoryview(value["w"])))
'
inside() {
  local old=$1 new=$2 keeper daemon reader_pid line conf=/etc/rdtd/rdtd.conf
  install old
  [[ $(property ActiveState rdtd.socket) == active && $(property ActiveState) == inactive ]] ||
    fail "after the installation the socket is $(property ActiveState rdtd.socket), the service $(property ActiveState)"
  [[ $(property UnitFileState rdtd.socket) == enabled ]] || fail "rdtd.socket is $(property UnitFileState rdtd.socket)"
  [[ $(property ActiveState rdtd-exporter.service) == active ]] || fail "the exporter does not run"
  getent passwd rdtd >/dev/null || fail "there is no user rdtd"

  head -c 32 /dev/urandom | base64 >/etc/rdtd/key && chown rdtd /etc/rdtd/key && chmod 600 /etc/rdtd/key
  printf '\n[network]\nlisten = 127.0.0.1:7171\nkey_file = /etc/rdtd/key\ntrusted_network = yes\n' >>$conf
  { printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[1000000],"data_offsets":[0,1000000]}}'
    head -c 1000000 /dev/urandom; } >/tmp/a.safetensors
  rdtctl put --detached --timeout 20s /tmp/a.safetensors >/tmp/ref || fail "a put failed"
  python3 - <<'PY' || fail "Python cannot publish"
import rdtd
for step in 1, 2, 3:
    rdtd.default().publish("policy", {"w": bytearray([step] * 100000)})
PY
  same_objects "the put"
  runs "$old"
  for backend in host stream ucx gloo; do
    grep -qw "$backend" <<<"$(rdtctl backends)" || fail "the daemon has not loaded $backend: $(rdtctl backends)"
  done

  # The upgrade, while a process reads the object and goes on reading it.
  coproc reader { exec python3 -c "$reading" "$(tail -n 1 /tmp/ref)" 2>/tmp/reader; }
  reader_pid=$!
  read -r -t 20 line <&"${reader[0]}" || fail "the reader: $(cat /tmp/reader)"
  keeper=$(property MainPID rdtd-keeper.service) daemon=$(property MainPID)
  printf '\n[limits]\nowner_max_objects = 77\n' >>$conf
  install new
  runs "$new"
  [[ $(property MainPID rdtd-keeper.service) == "$keeper" ]] || fail "the upgrade restarted the keeper: $(cat /tmp/apt)"
  [[ $(property MainPID) != "$daemon" ]] || fail "the old daemon runs after the upgrade: $(cat /tmp/apt)"
  grep -q 'owner_max_objects = 77' $conf || fail "the upgrade took the configuration"
  same_objects "the upgrade"
  echo go >&"${reader[1]}"
  wait "$reader_pid" || fail "the reader: $(cat /tmp/reader)"
  cmp /tmp/read <(tail -c 1000000 /tmp/a.safetensors) || fail "the mapped bytes changed in the upgrade"

  # What would end with nothing that serves, or with fewer objects, leaves the daemon alone.
  cp $conf /tmp/good.conf
  printf 'owner_max_object = 78\n' >>$conf
  goes_on new "refuses the configuration" --reinstall
  cp /tmp/good.conf $conf
  goes_on old "unable to read the journal" --allow-downgrades
  install new # from a version that was never started
  same_objects "a downgrade and an upgrade"
  mkdir -p /etc/systemd/system/rdtd.service.d
  printf '[Service]\nEnvironment=RDTD_KEEPER=\n' >/etc/systemd/system/rdtd.service.d/test.conf
  systemctl daemon-reload && systemctl restart rdtd.service
  goes_on new "a keeper holds its objects" --reinstall
  rm -r /etc/systemd/system/rdtd.service.d
  systemctl daemon-reload && systemctl restart rdtd.service
  same_objects "a time without a keeper"
  apt-get install -y -qq --reinstall /rdt-test/new/rdtd-exporter_*.deb >/dev/null
  [[ $(property ActiveState rdtd-exporter.service) == active ]] || fail "the exporter does not run after an upgrade"

  systemctl stop rdtd.service
  install new --reinstall
  [[ $(property ActiveState) == inactive ]] || fail "an upgrade started a stopped daemon: $(cat /tmp/apt)"
  rdtctl ping -q --timeout 20s || fail "no answer after an upgrade of a stopped daemon"

  rm /etc/rdtd/key # which the package did not make
  apt-get purge -y -qq 'rdtd*' 'librdt*' python3-rdtd >/tmp/apt 2>&1 || fail "apt-get purge: $(cat /tmp/apt)"
  if pgrep -u rdtd >/dev/null; then fail "processes are left after a purge: $(ps -u rdtd -o args=)"; fi
  for file in /etc/rdtd /var/lib/rdtd /run/rdtd /lib/systemd/system/rdtd* /etc/systemd/system/*/rdtd*; do
    [[ ! -e $file ]] || fail "left after a purge: $file"
  done
  [[ $(systemctl --failed --plain --no-legend) != *rdtd* ]] || fail "failed units after a purge: $(systemctl --failed)"
  echo "all is right"
}

if [[ ${1:-} == --inside ]]; then
  trap 'echo $? >/rdt-test/status; systemctl --force poweroff' EXIT
  echo "booted"
  inside "$2" "$3"
  exit
fi

cd "$(dirname "$0")/../../.."
[[ -n ${RDT_TEST_PACKAGES:-} ]] || { echo "takes minutes and Debian's mirror: make test-deb"; exit 77; }
[[ $(id -u) == 0 ]] || { echo "a new Debian needs root"; exit 77; }
for tool in dpkg-buildpackage lintian debootstrap systemd-nspawn; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed"; exit 77; }
done
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' \
  'Component: main' | head -n 1)
[[ -n $mirror ]] || { echo "apt has no package lists of Debian 12"; exit 77; }

tmp=$(mktemp -d)
trap 'rm -rf --one-file-system "$tmp"' EXIT
mkdir "$tmp"/{root,out,tree}

# The packages of this version and of the next.
old=$(sed -n 's/^VERSION *:= *//p' Makefile)
new=${old%.*}.$((${old##*.} + 1))
cp -r .ci .clang-format Makefile README.md backends client daemon proto systemd tests "$tmp/tree"
sed -i "s/^VERSION .*/VERSION := $new/" "$tmp/tree/Makefile"
sed -i "s/VERSION \"$old\"/VERSION \"$new\"/" "$tmp"/tree/{client/rdt.h,daemon/base/node.h}
cuda=${CUDA_HOME:-}
for place in /usr/local/cuda /opt/cuda "$PWD"/build/cuda/*/nvidia/cu13; do
  [[ -n $cuda || ! -e $place/include/cuda.h ]] || cuda=$place
done
for folder in old new; do
  where=$PWD
  [[ $folder == old ]] || where=$tmp/tree
  make --no-print-directory -C "$where" deb ${cuda:+CUDA_HOME="$cuda"} >"$tmp/log" 2>&1 ||
    { cat "$tmp/log"; fail "make deb failed"; }
  mkdir "$tmp/out/$folder"
  find "$where/build/deb" -name '*.deb' ! -name '*-dbgsym_*' -exec cp -t "$tmp/out/$folder" {} +
done
wanted='rdtd rdtd-backend-ucx rdtd-backend-gloo rdtd-etcd rdtd-exporter librdt0 librdt-dev python3-rdtd'
[[ -z $cuda ]] || wanted+=' rdtd-backend-cuda librdt-cuda0 librdt-cuda-dev'
for package in $wanted; do
  compgen -G "$tmp/out/old/${package}_$old-*.deb" >/dev/null || fail "make deb made no $package: $(ls "$tmp/out/old")"
done
lintian --allow-root --fail-on error,warning build/deb/*.changes >"$tmp/log" 2>&1 ||
  { cat "$tmp/log"; fail "lintian found faults"; }

# The new Debian, without the recommendation of anything.
base=build/bookworm.tar
if [[ ! -e $base ]]; then
  debootstrap --variant=minbase --include=ca-certificates,dbus,procps,python3,systemd,systemd-sysv bookworm "$tmp/root" \
    "$mirror" >"$tmp/log" 2>&1 ||
    { echo "debootstrap made no Debian: $(tail -n 1 "$tmp/log")"; exit 77; }
  rm -f "$tmp/root/etc/machine-id"
  tar -cf "$base.$$" -C "$tmp/root" . && mv "$base.$$" "$base"
else
  tar -xf "$base" -C "$tmp/root"
fi
cp -rL /etc/apt/apt.conf.d/* "$tmp/root/etc/apt/apt.conf.d/"
certificates=/etc/ssl/certs/ca-certificates.crt
[[ ! -e $certificates ]] || cp -L "$certificates" "$tmp/root/etc/ssl/certs/"
cp -L /etc/resolv.conf /etc/hosts "$tmp/root/etc/"
cp -r "$tmp/out/old" "$tmp/root/tmp/"
chroot "$tmp/root" sh -c 'apt-get update -qq &&
  apt-get install -y -qq --no-install-recommends --download-only /tmp/old/*.deb && rm -r /tmp/old' >"$tmp/log" 2>&1 ||
  { cat "$tmp/log"; fail "apt does not find what the packages depend on"; }

cp "$0" "$tmp/out/script"
cat >"$tmp/root/etc/systemd/system/rdt-test.service" <<UNIT
[Unit]
Wants=basic.target
After=basic.target
[Service]
Type=oneshot
Environment=LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=/bin/bash /rdt-test/script --inside $old $new
StandardOutput=append:/rdt-test/log
StandardError=append:/rdt-test/log
UNIT
timeout -k 5 600 systemd-nspawn --quiet --register=no --keep-unit --machine=rdtd-packages --private-network --console=pipe \
  --directory="$tmp/root" --bind="$tmp/out:/rdt-test" --boot systemd.unit=rdt-test.service systemd.log_target=console \
  >"$tmp/console" 2>&1 </dev/null || true
if ! grep -qx booted "$tmp/out/log" 2>/dev/null; then
  echo "systemd does not boot in a container here: $(tail -n 1 "$tmp/console")"
  exit 77
fi
cat "$tmp/out/log"
[[ -r $tmp/out/status && $(<"$tmp/out/status") == 0 ]] || fail "the part inside the container failed"
