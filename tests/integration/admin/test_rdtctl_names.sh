#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl and published names: it publishes files as versions, fetches versions into files, and waits for the next version.
set -uo pipefail
. "$(dirname "$0")/rdtctl.sh"

ended() { ! kill -0 "$1" 2>/dev/null; }
waited_for() { "$rdtctl" names --json --prefix "$1" | grep -q '"waiters": 1'; }
file() { # NAME BYTES_OF_4
  local header='{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}' length
  printf -v length '\\x%02x' ${#header}
  printf '%b%s%s' "$length\0\0\0\0\0\0\0" "$header" "$2" >"$dir/$1.safetensors"
}

serve "$RDT_SOCKET" "$dir/log" --state-dir "$dir"
pids+=("$daemon")
for i in 1 2 3; do file "v$i" "abc$i"; done

# ---- a file is a version ----

status 0 "$rdtctl" names
says '^no names$'
status 0 "$rdtctl" put "$dir/v1.safetensors" --publish weights
says '^rdt:[0-9a-f]{32}/weights\?v=0&u='
says 'version 1 of weights'
ref=$(head -1 "$dir/out")
status 0 "$rdtctl" names
says '^weights +1 +[0-9]+ +owner +4 B +0 '
status 0 "$rdtctl" fetch --name weights -o "$dir/out.st" --timeout 20s
says '^version 1 of weights, '
cmp "$dir/v1.safetensors" "$dir/out.st" || bad 'version 1 came back changed'
status 0 "$rdtctl" fetch "$ref" -o "$dir/out.st" --timeout 20s --json
says '"version": 1'
status 0 "$rdtctl" stat --name weights
says '^held by +1 hold and 0 pins of transfers; 0 requests wait for it'
says 'it is published as "weights"'
status 4 "$rdtctl" wait --name weights --after 1 --timeout 50ms
status 0 "$rdtctl" wait --name weights --timeout 5s
says '^weights has been put'

# ---- the next one ----

"$rdtctl" fetch --name weights --after 1 -o "$dir/next.st" --timeout 30s >"$dir/fetched" 2>&1 &
fetcher=$!
pids+=("$fetcher")
until_true waited_for weights || bad 'nobody waits for the next version'
status 0 "$rdtctl" put "$dir/v2.safetensors" --publish weights --json -q
says '"version": 2'
until_true ended "$fetcher" || bad 'the fetch does not end'
wait "$fetcher" || bad "the fetch that waited: $(cat "$dir/fetched")"
cmp "$dir/v2.safetensors" "$dir/next.st" || bad 'version 2 came changed'
status 0 "$rdtctl" objects --json
(($(grep -c '"generation"' "$dir/out") == 1)) || bad "more than the newest version is left: $(cat "$dir/out")"

# ---- an object that is there ----

exec {refs}< <(exec "$rdtctl" put -q "$dir/v3.safetensors" --id o 2>"$dir/actor")
actor=$!
pids+=("$actor")
read -r -t 30 -u "$refs" _ || bad "put: no ref: $(cat "$dir/actor")"
status 0 "$rdtctl" publish weights o --json
says '"version": 3'
status 0 "$rdtctl" publish other o
says '^rdt:.*/other\?v=0'
kill -TERM "$actor"
wait "$actor"
status 0 "$rdtctl" fetch --name other -o "$dir/out.st" --timeout 20s
cmp "$dir/v3.safetensors" "$dir/out.st" || bad 'version 3 came changed'
status 0 "$rdtctl" stat o
says 'it is published as "other"'
status 0 "$rdtctl" names --limit 1 --json
(($(grep -c '"name"' "$dir/out") == 1)) || bad "--limit 1 shows $(cat "$dir/out")"
status 0 "$rdtctl" names --prefix oth
says '^other '

# ---- other users, and names that end ----

status 0 "$rdtctl" publish mine o --ttl 50s
status 0 "$rdtctl" names --prefix mine
says '^mine .* in [0-9.]+ s'
status 0 "$rdtctl" stat --name mine --owner "$(id -un)"
status 0 "$rdtctl" fetch --name mine --owner "$(id -u)" -o "$dir/out.st" --timeout 20s
status 0 "$rdtctl" publish mine o --ttl 100ms
until_true sh -c "! '$rdtctl' names --prefix mine | grep -q '^mine'" || bad 'the name does not end with its time to live'
status 1 "$rdtctl" wait --name mine --after 2
says 'FREED: .*time to live'
status 2 "$rdtctl" wait --name mine --owner 'no such user'
says '^rdtctl: wait: INVALID: --owner: there is no user "no such user"'
status 2 "$rdtctl" stat o --owner root
says 'a REF contains its owner'

# ---- refusals, and the end ----

status 1 "$rdtctl" publish weights nobody
says 'rdtctl: publish: NOT_FOUND: '
status 1 "$rdtctl" publish weights o --visibility all
says 'rdtctl: publish: INVALID: .*put it with that visibility'
status 1 "$rdtctl" unpublish nobody
says 'rdtctl: unpublish: NOT_FOUND: '
status 1 "$rdtctl" free "$ref"
says 'rdtctl: free: INVALID: "weights" is a name: unpublish it'
status 1 "$rdtctl" free weights
says 'rdtctl: free: NOT_FOUND: .*there is a name "weights": unpublish it'
status 1 "$rdtctl" free o
says 'rdtctl: free: FREED: .*the name "(weights|other)" holds it until you unpublish'
"$rdtctl" wait --name weights --after 3 >"$dir/waited" 2>&1 &
waiter=$!
pids+=("$waiter")
until_true waited_for weights || bad 'nobody waits for the next version'
status 0 "$rdtctl" unpublish "$ref"
says '^weights is unpublished$'
until_true ended "$waiter" || bad 'the wait does not end'
wait "$waiter" && bad 'the wait for an unpublished name ended well'
grep -q 'FREED: .*after version 3' "$dir/waited" || bad "the wait says $(cat "$dir/waited")"
status 0 "$rdtctl" unpublish other --json
says '"unpublished": true'
status 0 "$rdtctl" objects
says '^no objects$'
kill -TERM "${pids[0]}"
wait "${pids[0]}" || bad "the daemon ended with status $?"

((failures == 0))
