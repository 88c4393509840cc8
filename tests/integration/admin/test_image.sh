#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The container image works as rdt-container(7) says: its command runs as uid 7171 without any right, on a root file system that
# it cannot write, in namespaces of its own; an actor in other namespaces that has the directory of the socket and nothing else
# puts and fetches; the daemon is killed and its detached objects are still there; SIGTERM ends it with status 0.
#
# There is no container engine here: the image's root file system and its configuration, as `make image` has made them, are
# started by unshare(1).
# variant: release
set -euo pipefail
cd "$(dirname "$0")/../../.."
fail() { echo "$*"; exit 1; }
version=$(sed -n 's/^VERSION *:= *//p' Makefile)
[[ $(grep -c 'image: ' systemd/image/kubernetes.yaml) == "$(grep -c "image: rdtd:$version\$" systemd/image/kubernetes.yaml)" ]] ||
  fail "systemd/image/kubernetes.yaml names another version than $version"
image=(build/image/rdtd-*.oci.tar)
[[ $(id -u) == 0 ]] || { echo "namespaces with other users need root"; exit 77; }
[[ -e ${image[0]} && -e ${image[0]}.rootfs.tar ]] || { echo "no image: make image"; exit 77; }
if [[ ${1:-} != --namespace ]]; then exec unshare --mount --propagation private "$0" --namespace; fi

tmp=$(mktemp -d)
pod=
trap '[[ -z $pod ]] || kill -9 "$pod" 2>/dev/null; wait; umount -lq "$tmp"; rm -rf "$tmp"' EXIT
mount -t tmpfs tmpfs "$tmp"
mkdir "$tmp"/{root,oci,socket,state,keeper,actor}
tar -C "$tmp/root" -xf "${image[0]}.rootfs.tar"
tar -C "$tmp/oci" -xf "${image[0]}"
chown 7171:7171 "$tmp"/{socket,state,keeper}
chown 1000:1000 "$tmp/actor"
chmod 755 "$tmp"

# The command and the user, from the image's own configuration.
readarray -t config < <("${PYTHON:-/usr/bin/python3}" - "$tmp/oci" <<'PY'
import json, pathlib, sys
top = pathlib.Path(sys.argv[1])
def blob(digest):
    return json.loads((top / "blobs" / digest.replace(":", "/")).read_text())
index = json.loads((top / "index.json").read_text())
config = blob(blob(index["manifests"][0]["digest"])["config"]["digest"])["config"]
assert config["StopSignal"] == "SIGTERM" and "/run/rdtd" in config["Volumes"], config
print(config["User"], *config["Entrypoint"], sep="\n")
PY
)
[[ ${config[0]} == 7171:7171 ]] || fail "the image's user is ${config[0]}"

# in_pod UID ROOT_SETUP COMMAND ...: runs the command in namespaces of its own, on the image's file system, read-only.
in_pod() {
  local uid=$1 mounts=$2
  shift 2
  exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child --propagation private /bin/bash -euc '
    root=$1 uid=$2 mounts=$3
    shift 3
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for device in null zero urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
    for pair in $mounts; do mount --bind "${pair%%:*}" "$root${pair#*:}"; done
    exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs \
      --bounding-set=-all --inh-caps=-all "$@"' bash "$tmp/root" "$uid" "$mounts" "$@"
}
actor() { (in_pod 1000 "$tmp/socket:/run/rdtd $tmp/actor:/mnt" "$@"); }
answers() { actor rdtctl ping --quiet --timeout 200ms >/dev/null 2>&1; }
until_answers() {
  local end=$((SECONDS + 30))
  until answers; do ((SECONDS < end)) || fail "no answer: $(cat "$tmp/log")"; done
}
daemon_pid() { pgrep -u 7171 -x rdtd; }

(in_pod 7171 "$tmp/socket:/run/rdtd $tmp/state:/var/lib/rdtd $tmp/keeper:/run/rdtd-keeper" "${config[@]:1}" \
  --log-level debug) >"$tmp/log" 2>&1 &
pod=$!
until_answers

printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[1000000],"data_offsets":[0,1000000]}}' >"$tmp/actor/a.safetensors"
head -c 1000000 /dev/urandom >>"$tmp/actor/a.safetensors"
actor rdtctl put --detached /mnt/a.safetensors --id weights >"$tmp/ref" || fail "an actor cannot put"
same() {
  rm -f "$tmp/actor/b.safetensors"
  actor rdtctl fetch --quiet weights -o /mnt/b.safetensors || fail "$1: the object is gone: $(tail "$tmp/log")"
  cmp <(tail -c 1000000 "$tmp/actor/a.safetensors") <(tail -c 1000000 "$tmp/actor/b.safetensors") || fail "$1: the bytes differ"
}
same "after the put"
actor rdtctl backends >"$tmp/backends"
for name in host stream ucx; do grep -q "^$name " "$tmp/backends" || fail "the image has no backend $name: $(cat "$tmp/backends")"; done

old=$(daemon_pid)
kill -9 "$old"
end=$((SECONDS + 30))
until new=$(daemon_pid) && [[ $new != "$old" ]]; do ((SECONDS < end)) || fail "the keeper starts no daemon: $(cat "$tmp/log")"; done
until_answers
same "after kill -9 of the daemon"

# The engine's signal goes to the first process.
first=$(pgrep -u 7171 -x rdtd-keeper)
kill -TERM "$first"
status=0
wait "$pod" || status=$?
pod=
((status == 0)) || fail "SIGTERM ended the container with $status: $(tail "$tmp/log")"
[[ -z $(daemon_pid || true) ]] || fail "a daemon is left"
! grep -E ' (error|warn) ' "$tmp/log" | grep -v 'ended by a signal\|was killed' || fail "unexpected lines in the log"
