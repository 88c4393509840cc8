#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# systemd's own checks accept the installed units, the user and the sandbox.
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../../.."
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "$*"; exit 1; }

make --no-print-directory install DESTDIR="$tmp/root" PREFIX=/usr/local >"$tmp/log" ||
  { cat "$tmp/log"; fail "make install failed"; }
units=$tmp/root/usr/local/lib/systemd/system
# verify looks for the programs that ExecStart and others name, where it would be installed.
sed -i -E "s,^(ExecStart|ExecStartPre|ExecReload)=/usr/local,\\1=$tmp/root/usr/local," "$units"/*.service
said=$(SYSTEMD_UNIT_PATH=$units: systemd-analyze verify --man=no --recursive-errors=no "$units"/* 2>&1) ||
  fail "systemd-analyze verify failed: $said"
[[ -z $said ]] || fail "systemd-analyze verify: $said"

# The judge must be able to find faults.
echo 'NoSuchKey=1' >>"$units/rdtd.service"
said=$(SYSTEMD_UNIT_PATH=$units: systemd-analyze verify --man=no --recursive-errors=no "$units/rdtd.service" 2>&1 || true)
[[ $said == *NoSuchKey* ]] || fail "systemd-analyze verify does not see an unknown key"
sed -i '$d' "$units/rdtd.service"

# With GPUs: the driver is ready before the daemon starts, and its devices are in the sandbox. The pipes of MPS are not: MPS serves
# one user at a time, and the daemon is a user of its own.
for line in 'After=.*nvidia-persistenced\.service' 'After=.*nvidia-fabricmanager\.service' 'After=.*modprobe@nvidia_uvm\.service' \
  'Wants=.*modprobe@nvidia_uvm\.service' 'ExecStartPre=-\+/.*nvidia-modprobe -c 0 -u' 'DeviceAllow=char-nvidia\* rwm'; do
  grep -qE "^$line" "$units/rdtd.service" || fail "rdtd.service has no line like $line"
done
! grep -q nvidia-mps "$units/rdtd.service" || fail "rdtd.service gives the daemon the pipes of MPS"

for unit in "$units"/*.service; do
  exposure=$(systemd-analyze security --offline=true --threshold=20 "$unit" 2>&1) ||
    fail "the sandbox is worse than 2.0:"$'\n'"$exposure"
done

mkdir -p "$tmp/users/etc"
said=$(systemd-sysusers --root="$tmp/users" "$tmp/root/usr/local/lib/sysusers.d/rdtd.conf" 2>&1) ||
  fail "systemd-sysusers failed: $said"
grep -q '^rdtd:' "$tmp/users/etc/passwd" || fail "systemd-sysusers made no user rdtd: $said"
