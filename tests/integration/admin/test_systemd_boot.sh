#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real systemd runs the installed units as README describes: the socket starts the service, an error in rdtd.conf does not
# stop the socket, the watchdog and a crash restart the daemon, and a stopped service starts again when a client connects.
# With rdtd-keeper, a detached object survives each of these.
#
# A container boots this machine's file system with `make install` on top, in an overlay that is gone afterwards. The script's
# second half runs inside, as a unit: `test_systemd_boot.sh --inside`.
# variant: release
set -euo pipefail
fail() { echo "$*"; exit 1; }

# until_true SECONDS COMMAND ...: tries the command until it succeeds.
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || fail "not true in time: $*"
    sleep 0.05
  done
}

property() { systemctl show -p "$1" --value "${2:-rdtd.service}"; }
state_is() { [[ $(property ActiveState) == "$1" && $(property SubState) == "$2" ]]; }
restarted() { [[ $(property MainPID) != "$1" && $(property ActiveState) == active ]]; }
# same_object WHEN: the object that was put is there, with its bytes.
same_object() {
  rm -f /tmp/b.safetensors
  rdtctl fetch -q "$(tail -n 1 /tmp/ref)" -o /tmp/b.safetensors || fail "the object is gone after $1: $(rdtctl status)"
  cmp <(tail -c 1000000 /tmp/a.safetensors) <(tail -c 1000000 /tmp/b.safetensors) || fail "the bytes differ after $1"
}
limit_is() { rdtctl limits -a --json | grep -A1 '"used": .*' | grep -q "\"limit\": $1"; }
# hardened UNIT: the exposure that systemd sees, in tenths, is at most 2.0.
hardened() {
  local exposure
  exposure=$(systemd-analyze security --no-pager "$1" | sed -nE 's/.*exposure level for .*: ([0-9]+)\.([0-9]).*/\1\2/p')
  [[ -n $exposure ]] && ((10#$exposure <= 20)) || fail "systemd-analyze security $1: exposure $exposure (tenths)"
}
scrape() { # LINE
  local page
  page=$(python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9464/metrics").read().decode())') &&
    grep -qx "rdtd_$1" <<<"$page"
}
err_line() { journalctl -q -p err -u rdtd.service | grep -F "$1"; }

inside() {
  local pid keeper conf=/etc/rdtd/rdtd.conf
  systemd-sysusers
  systemctl daemon-reload
  [[ $(property ActiveState) == inactive ]] || fail "the service runs before anybody asked for it"
  systemctl enable --now --quiet rdtd.socket
  [[ $(property ActiveState) == inactive ]] || fail "the socket started the service without a client"

  rdtctl ping --timeout 20s || fail "no answer at the first try by socket activation"
  [[ $(property ActiveState) == active ]] || fail "the service is $(property ActiveState)"
  pid=$(property MainPID)
  [[ $(stat -c %U "/proc/$pid") == rdtd ]] || fail "the daemon runs as $(stat -c %U "/proc/$pid")"
  [[ $(stat -c %a /run/rdtd/rdtd.sock) == 666 ]] || fail "the socket's mode is $(stat -c %a /run/rdtd/rdtd.sock)"
  { printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[1000000],"data_offsets":[0,1000000]}}'
    head -c 1000000 /dev/urandom; } >/tmp/a.safetensors
  rdtctl put --detached /tmp/a.safetensors >/tmp/ref || fail "a put failed in the unit's sandbox"
  same_object "the put"
  [[ $(property ActiveState rdtd-keeper.service) == active ]] || fail "the keeper does not run"
  hardened rdtd.service
  hardened rdtd-keeper.service
  systemctl start rdtd-exporter.service
  until_true 20 scrape "kept_objects 1"
  hardened rdtd-exporter.service
  rdtctl doctor -q >/tmp/doctor || (($? != 2)) || fail "the doctor finds failures: $(cat /tmp/doctor)"
  grep '^skip' /tmp/doctor | grep -v RDT005 &&
    fail "the doctor cannot check everything in the unit's sandbox: $(cat /tmp/doctor)"

  cp $conf /tmp/good.conf
  printf '\n[limits]\nowner_max_objects = 77\n' >>$conf
  systemctl reload rdtd.service || fail "reload failed"
  until_true 20 limit_is 77
  printf 'owner_max_object = 78\n' >>$conf
  if systemctl reload rdtd.service 2>/dev/null; then fail "a reload with a typo in $conf succeeds"; fi
  limit_is 77 || fail "a typo changed the limit"
  [[ $(property ActiveState) == active && $(property MainPID) == "$pid" ]] || fail "a reload with a typo ended the daemon"
  cp /tmp/good.conf $conf

  kill -KILL "$pid"
  until_true 20 restarted "$pid"
  rdtctl ping --timeout 20s || fail "no answer after a crash"
  same_object "a crash"
  systemctl restart rdtd.service || fail "restart failed"
  same_object "a restart"

  # The service is active from the moment when it serves, which here waits for the keeper.
  keeper=$(property MainPID rdtd-keeper.service)
  kill -STOP "$keeper"
  systemctl restart --no-block rdtd.service
  until_true 20 state_is activating start
  kill -CONT "$keeper"
  until_true 40 state_is active running
  same_object "a start that waited for the keeper"

  # A new keeper gets everything from the daemon.
  kill -KILL "$keeper"
  until_true 20 scrape "keeper_up 0"
  until_true 20 scrape "keeper_up 1"
  until_true 20 scrape "kept_objects 1"
  [[ $(property MainPID rdtd-keeper.service) != "$keeper" ]] || fail "the killed keeper runs"
  pid=$(property MainPID)
  kill -KILL "$pid"
  until_true 20 restarted "$pid"
  same_object "the deaths of the keeper and of the daemon"

  pid=$(property MainPID)
  kill -STOP "$pid"
  until_true 40 restarted "$pid"
  rdtctl ping --timeout 20s || fail "no answer after the watchdog"
  same_object "the watchdog"

  cp $conf /tmp/good.conf
  printf '\n[limits]\nowner_max_byte = 1\n' >>$conf
  if systemctl restart rdtd.service 2>/dev/null; then fail "the service started with a typo in $conf"; fi
  err_line owner_max_byte || fail "the journal has no error that names the key: $(journalctl -q -u rdtd.service | tail -5)"
  [[ $(property ActiveState rdtd.socket) == active ]] || fail "the typo took the socket down"
  for ((i = 0; i < 40; i++)); do
    rdtctl ping -q --timeout 2s 2>/dev/null && touch /tmp/served &
  done
  wait
  [[ ! -e /tmp/served ]] || fail "a daemon with a typo in its configuration serves"
  [[ $(property ActiveState rdtd.socket) == active ]] || fail "clients took the socket down while the typo was there"
  cp /tmp/good.conf $conf
  until_true 30 state_is active running # no client is needed: systemd tries for ever
  [[ $(property StartLimitIntervalUSec) == 0 ]] || fail "systemd gives the service up after some starts"
  rdtctl ping -q --timeout 5s || fail "no answer after a wrong configuration"
  same_object "a wrong configuration"

  # The address of `listen` comes after the start, as from DHCP at boot.
  (umask 077; head -c 32 /dev/urandom | base64 >/etc/rdtd/key; chown rdtd /etc/rdtd/key)
  printf '\n[network]\nlisten = 10.123.0.1:7171\nkey_file = /etc/rdtd/key\n' >>$conf
  systemctl restart rdtd.service || fail "no start without the address of listen: $(journalctl -q -u rdtd.service | tail -5)"
  same_object "a start without the address of listen"
  ip addr add 10.123.0.1/32 dev lo
  until_true 20 bash -c '</dev/tcp/10.123.0.1/7171'
  ip addr del 10.123.0.1/32 dev lo
  cp /tmp/good.conf $conf
  systemctl restart rdtd.service

  systemctl stop rdtd.service || fail "stop failed"
  [[ $(property Result) == success ]] || fail "stop ended with $(property Result)"
  rdtctl ping --timeout 20s || fail "no answer at the first try after a stop"
  same_object "a stop"
  systemctl restart rdtd-keeper.service
  until_true 20 scrape "keeper_up 1"
  until_true 20 scrape "kept_objects 1"
  systemctl restart rdtd.service
  same_object "a restart of the keeper and one of the daemon"
  systemctl stop rdtd.service
  systemctl restart rdtd-keeper.service
  rdtctl ping --timeout 20s || fail "no answer after the keeper's restart"
  if rdtctl fetch -q "$(tail -n 1 /tmp/ref)" -o /tmp/b.safetensors 2>/dev/null; then fail "a keeper that was restarted has objects"; fi
  systemctl stop rdtd.socket rdtd.service
  if rdtctl ping -q --timeout 1s 2>/dev/null; then fail "a stopped socket is served"; fi
  echo "all is right"
}

if [[ ${1:-} == --inside ]]; then
  trap 'echo $? >/rdt-test/status; systemctl --force poweroff' EXIT
  echo "booted"
  inside
  exit
fi

cd "$(dirname "$0")/../../.."
[[ $(id -u) == 0 ]] || { echo "booting a container needs root"; exit 77; }
command -v systemd-nspawn >/dev/null || { echo "systemd-nspawn (Debian: systemd-container) is not installed"; exit 77; }
if [[ ${1:-} != --namespace ]]; then
  unshare --mount --propagation private true 2>/dev/null || { echo "mounts cannot be private here, as in a chroot"; exit 77; }
  exec unshare --mount --propagation private "$0" --namespace
fi

tmp=$(mktemp -d)
trap 'umount -lq "$tmp/root" "$tmp"; rm -rf "$tmp"' EXIT
mount -t tmpfs tmpfs "$tmp"
mkdir "$tmp"/{upper,work,root,out}
mount -t overlay -o "lowerdir=/,upperdir=$tmp/upper,workdir=$tmp/work" overlay "$tmp/root" 2>"$tmp/why" ||
  { echo "no overlay of / here: $(tail -n 1 "$tmp/why")"; exit 77; }
make --no-print-directory install DESTDIR="$tmp/root" PREFIX=/usr/local >"$tmp/log" ||
  { cat "$tmp/log"; fail "make install failed"; }
rm -f "$tmp/root/etc/machine-id"
cp "$0" "$tmp/out/script"
units=$tmp/root/etc/systemd/system
mkdir -p "$units/rdtd.service.d"
printf '[Service]\nWatchdogSec=2s\n' >"$units/rdtd.service.d/test.conf" # instead of 30 s
cat >"$units/rdt-test.service" <<'UNIT'
[Unit]
Wants=basic.target
After=basic.target
[Service]
Type=oneshot
Environment=LC_ALL=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
ExecStart=/bin/bash /rdt-test/script --inside
StandardOutput=append:/rdt-test/log
StandardError=append:/rdt-test/log
UNIT

# The container has its own network, processes and users; it shares nothing but the folder out.
timeout -k 5 150 systemd-nspawn --quiet --register=no --keep-unit --machine=rdtd-test --private-network --console=pipe \
  --directory="$tmp/root" --bind="$tmp/out:/rdt-test" --boot systemd.unit=rdt-test.service systemd.log_target=console \
  >"$tmp/console" 2>&1 </dev/null || true
if ! grep -qx booted "$tmp/out/log" 2>/dev/null; then
  echo "systemd does not boot in a container here: $(tail -n 1 "$tmp/console")"
  exit 77
fi
cat "$tmp/out/log"
[[ -r $tmp/out/status && $(<"$tmp/out/status") == 0 ]] || fail "the part inside the container failed"
