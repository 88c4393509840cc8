#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-layers accepts a correct small tree, and reports each fault that this test plants in it.
# variant: release
set -euo pipefail
check=$(cd "$(dirname "$0")/../.." && pwd)/check-layers
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

sound() {
  rm -rf "$tmp/tree"
  mkdir -p "$tmp"/tree/{proto,client/{ctl,cuda,session},daemon/{base,plugins,objects,transfers/serve,calls,rpc},backends/{common,host,ucx},tests/loopback,build/{backends,obj/{client/{cuda,session},daemon/{base,objects,rpc,transfers/serve}}}}
  cd "$tmp/tree"
  echo '#include <stdint.h>' >proto/rdt_status.h
  printf '%s\n' '#include "rdt_status.h"' '/* calls rdt_absent(1) */' 'void *rdt_connect(const char *socket);' >client/rdt.h
  echo '#include "rdt_status.h"' >backends/rdt_backend.h
  printf '#include %s\n' '"proto/rdt_status.h"' '"rdt.pb-c.h"' '<protobuf-c/protobuf-c.h>' >proto/frame.c
  printf '#include %s\n' '"client/rdt.h"' '"proto/rdt_status.h"' >client/client.c
  printf '%s\n' '/* Order of the files.' ' *' ' *     2  client' ' *     1  memory' ' */' >client/session/connection.h
  touch client/session/memory.c client/cuda/{map,pool}.c
  printf '%s\n' '/* Order of the files.' ' *' ' *     2  pool    allocates' ' *     1  map     maps' ' */' >client/cuda/gpu.h
  printf '#include %s\n' '<jansson.h>' '"client/rdt.h"' >client/ctl/rdtctl.c
  touch daemon/{base/list,objects/object,plugins/plugin,transfers/transfer,transfers/transfer_impl,transfers/serve/serve,rpc/rpc}.h backends/{common/ring,ucx/own}.h backends/host/host.c
  printf '%s\n' '/* Order.' ' *' ' *   pull    serve_pull > serve    -> events: pull' ' *   core    transfer, _record' ' */' >daemon/transfers/transfer_impl.h
  touch daemon/daemon.c daemon/{base/list,objects/object,transfers/serve/serve,transfers/transfer_record}.c
  printf '#include %s\n' '"daemon/transfers/transfer.h"' '"rpc.h"' '"backends/rdt_backend.h"' '<uv.h>' '<sys/socket.h>' >daemon/rpc/rpc_put.c
  printf '#include %s\n' '"rdt_backend.h"' '"own.h"' '<ucp/api/ucp.h>' >backends/ucx/ucx.c
  cd build
  echo 'void *rdt_connect(const char *s); void *rdt_connect(const char *s) { return (void *)s; }' >rdt.c
  echo 'void *rdt_backend_init(void); void *rdt_backend_init(void) { return 0; }' >plugin.c
  echo 'int main(void) { return 0; }' >main.c
  cp "$tmp"/kept/* . 2>/dev/null || {
    gcc -shared -fPIC -o librdt.so rdt.c
    gcc -shared -fPIC -o plugin.so plugin.c
    gcc -o rdtd main.c
    mkdir "$tmp/kept" && cp librdt.so plugin.so rdtd "$tmp/kept"
  }
  mv plugin.so backends/rdt_host.so
  object base/list 'int list_add(void); int list_add(void) { return 0; }'
  object objects/object 'int list_add(void); int object_find(void); int object_find(void) { return list_add(); }'
  object rpc/rpc_put 'int object_find(void); int rpc_put(void); int rpc_put(void) { return object_find(); }'
}

object() { # NAME SOURCE: an object of daemon/NAME.c in the build, or of NAME.c if it names its folder
  local name=daemon/$1
  [[ $1 != client/* ]] || name=$1
  gcc -c -o "$tmp/tree/build/obj/$name.o" -x c - <<<"$2"
}

sees() { # what it must say
  local said
  if said=$("$check" "$tmp/tree/build" "$tmp/tree" 2>&1); then
    echo "not seen: $1"
    failures=$((failures + 1))
  elif [[ $said != *"$1"* ]]; then
    printf 'expected "%s", got:\n%s\n' "$1" "$said"
    failures=$((failures + 1))
  fi
}

plant() { # FILE INCLUDE EXPECTED
  sound
  cd "$tmp/tree"
  echo "#include $2" >>"$1"
  sees "$3"
}

sound
said=$("$check" "$tmp/tree/build" "$tmp/tree" 2>&1) || { echo "a sound tree is refused: $said"; failures=$((failures + 1)); }

clock='reads a clock that may be set'
for line in 'clock_gettime(CLOCK_REALTIME, &now);' 'now = time(NULL);' 'gettimeofday(&now, NULL);'; do
  sound
  echo "$line" >>"$tmp/tree/daemon/rpc/rpc_put.c"
  sees "daemon/rpc/rpc_put.c:6: $clock"
done
sound
echo 'pthread_cond_timedwait(&more, &mutex, &until);' >>"$tmp/tree/backends/ucx/ucx.c"
sees 'backends/ucx/ucx.c: pthread_cond_timedwait waits by a clock that may be set'

plant proto/frame.c '"daemon/base/list.h"' 'proto/frame.c: may not include daemon/base/list.h'
plant proto/frame.c '<uv.h>' 'proto/frame.c: may not include <uv.h>'
plant client/client.c '"daemon/base/list.h"' 'client/client.c: may not include daemon/base/list.h'
plant client/client.c '"backends/rdt_backend.h"' 'client/client.c: may not include backends/rdt_backend.h'
plant client/client.c '<jansson.h>' 'client/client.c: may not include <jansson.h>'
plant daemon/plugins/plugin.h '"client/rdt.h"' 'daemon/plugins/plugin.h: may not include client/rdt.h'
plant daemon/plugins/plugin.h '"backends/ucx/own.h"' 'daemon/plugins/plugin.h: may not include backends/ucx/own.h'
plant daemon/plugins/plugin.h '<ucp/api/ucp.h>' 'daemon/plugins/plugin.h: may not include <ucp/api/ucp.h>'
plant daemon/plugins/plugin.h '<cuda.h>' 'daemon/plugins/plugin.h: may not include <cuda.h>'
plant daemon/transfers/transfer.h '"daemon/rpc/rpc.h"' 'daemon/transfers/transfer.h: may not include daemon/rpc/rpc.h: the room rpc is above transfers'
plant daemon/objects/object.h '"daemon/transfers/transfer.h"' 'daemon/objects/object.h: may not include daemon/transfers/transfer.h: the room transfers is above objects'
plant daemon/plugins/plugin.h '"../objects/object.h"' 'daemon/plugins/plugin.h: may not include daemon/objects/object.h: the room objects is above plugins'
plant daemon/base/list.h '"daemon/plugins/plugin.h"' 'daemon/base/list.h: may not include daemon/plugins/plugin.h: the room plugins is above base'
plant daemon/rpc/rpc_put.c '"daemon/transfers/transfer_impl.h"' 'daemon/rpc/rpc_put.c: may not include daemon/transfers/transfer_impl.h, a private header of the room transfers'
plant daemon/transfers/serve/serve.c '"daemon/rpc/rpc.h"' 'daemon/transfers/serve/serve.c: may not include daemon/rpc/rpc.h: the room rpc is above transfers'
plant daemon/rpc/rpc_put.c '"daemon/transfers/serve/serve.h"' 'daemon/rpc/rpc_put.c: may not include daemon/transfers/serve/serve.h, a private header of the room transfers'
sound
mkdir ../daemon/attic
echo '#include "daemon/base/list.h"' >../daemon/attic/old.c
sees 'daemon/attic/old.c: the room attic is not in the table'
plant client/session/memory.c '"client/client.c"' 'client/session/memory.c: may not include client/client.c'
plant client/client.c '"client/ctl/rdtctl.c"' 'client/client.c: may not include client/ctl/rdtctl.c'
plant backends/ucx/ucx.c '"daemon/base/list.h"' 'backends/ucx/ucx.c: may not include daemon/base/list.h'
plant backends/ucx/ucx.c '"proto/frame.c"' 'backends/ucx/ucx.c: may not include proto/frame.c'
plant backends/common/ring.h '"backends/ucx/own.h"' 'backends/common/ring.h: may not include backends/ucx/own.h'
plant backends/host/host.c '"backends/ucx/own.h"' 'backends/host/host.c: may not include backends/ucx/own.h'
plant backends/host/host.c '<ucp/api/ucp.h>' 'backends/host/host.c: may not include <ucp/api/ucp.h>'
plant tests/loopback/x.c '"daemon/base/list.h"' 'tests/loopback/x.c: may not include daemon/base/list.h'
plant client/rdt.h '"rdt.pb-c.h"' 'client/rdt.h: installed, may not include "rdt.pb-c.h"'
plant client/rdt.h '"proto/rdt_status.h"' 'client/rdt.h: installed, may not include "proto/rdt_status.h"'
plant proto/rdt_status.h '<protobuf-c/protobuf-c.h>' 'proto/rdt_status.h: installed, may not include <protobuf-c/protobuf-c.h>'
plant backends/rdt_backend.h '"limits.h"' 'backends/rdt_backend.h: installed, may not include "limits.h"'

sound
gcc -shared -fPIC -o librdt.so -x c - <<<'int rdt_connect(void); int rdt_connect(void) { return 0; } int rdt__pb(void); int rdt__pb(void) { return 0; }'
sees 'librdt.so: shows rdt__pb'
sound
echo 'void *rdt_absent(int a);' >>../client/rdt.h
sees 'librdt.so: lacks rdt_absent'
sound
gcc -shared -fPIC -o librdt.so rdt.c -Wl,--no-as-needed -luv
sees 'librdt.so: may not link libuv'
sound
gcc -o rdtd main.c -Wl,--no-as-needed -lucp
sees 'rdtd: may not link libucp'
sound
gcc -o rdtd -x c - <<<'int ncclSend(void); int ncclSend(void) { return 0; } int main(void) { return 0; }'
sees "rdtd: holds the vendor's ncclSend"
sound
rm rdtd
sees 'rdtd: was not built'
sound
gcc -shared -fPIC -o backends/rdt_host.so plugin.c rdt.c
sees 'rdt_host.so: shows'
sound
gcc -shared -fPIC -o backends/rdt_host.so plugin.c -Wl,--no-as-needed -luv
sees 'rdt_host.so: may not link libuv'

sound
object objects/object 'int rpc_put(void); int object_find(void); int object_find(void) { return rpc_put(); }'
sees 'daemon/objects/object.c: uses rpc_put of daemon/rpc/rpc_put.c: the room rpc is above objects'
sound
object transfers/serve/serve 'int rpc_put(void); int serve_end(void); int serve_end(void) { return rpc_put(); }'
sees 'daemon/transfers/serve/serve.c: uses rpc_put of daemon/rpc/rpc_put.c: the room rpc is above transfers'
sound
rm -r obj
sees 'no objects, so the symbols between rooms were not checked'
sound
object client/client 'int memory_find(void); int client_find(void); int client_find(void) { return memory_find(); }'
object client/session/memory 'int client_find(void); int memory_find(void); int memory_find(void) { return client_find(); }'
sees 'client/session/memory.c: uses client_find of client/client.c, which client/session/connection.h does not draw below it'
sound
touch "$tmp/tree/client/stray.c"
object client/stray 'int stray(void); int stray(void) { return 0; }'
sees 'client/stray.c: is not in the drawing of client/session/connection.h'
sound
object client/cuda/map 'int pool_keeps(void); int map(void); int map(void) { return pool_keeps(); }'
object client/cuda/pool 'int pool_keeps(void); int pool_keeps(void) { return 0; }'
sees 'client/cuda/map.c: uses pool_keeps of client/cuda/pool.c, which client/cuda/gpu.h does not draw below it'
sound
object transfers/serve/serve 'int transfer_end(void); int serve_end(void); int serve_end(void) { return transfer_end(); }'
object transfers/transfer_record 'int serve_end(void); int transfer_end(void); int transfer_end(void) { return serve_end(); }'
sees 'daemon/transfers/transfer_record.c: uses serve_end of daemon/transfers/serve/serve.c, which transfer_impl.h draws above it; call upward by a table'
sound
touch "$tmp/tree/daemon/transfers/serve/stray.c"
object transfers/serve/stray 'int stray(void); int stray(void) { return 0; }'
sees 'daemon/transfers/serve/stray.c: is not in the drawing of transfer_impl.h'

# circles of files within a room
sound
touch "$tmp"/tree/daemon/objects/{names,object_table}.c
object objects/object 'int names_find(void); int object_find(void); int object_find(void) { return names_find(); }'
object objects/names 'int table_find(void); int names_find(void); int names_find(void) { return table_find(); }'
object objects/object_table 'int object_find(void); int table_find(void); int table_find(void) { return object_find(); }'
sees 'daemon/objects/object.c: uses names_find of daemon/objects/names.c, which uses daemon/objects/object.c in turn'

sound
printf '\n%.0s' {1..895} >>"$tmp/tree/daemon/rpc/rpc_put.c"
"$check" "$tmp/tree/build" "$tmp/tree" >/dev/null || { echo '900 lines are refused'; failures=$((failures + 1)); }
echo >>"$tmp/tree/daemon/rpc/rpc_put.c"
sees 'daemon/rpc/rpc_put.c: has 901 lines, more than 900'
sound
touch "$tmp"/tree/backends/host/more_{1..45}.h
sees 'backends/host: has 46 files, more than 45'

fields() { # NUMBER TYPE: prints a struct with that many fields of the type, two in a line, and the comments and lists that fields have
  printf '%s\n' '/* struct other { bool a; }; */' 'struct many {' "    $2 a0, a1; /* bool b; */" '    void (*on_end)(int a, bool b);' '    /* int c;' '     * bool d; */'
  for ((i = 4; i <= $1; i++)); do echo "    $2 a$i[2];"; done
  printf '%s\n' '};'
}
sound
{ fields 30 int; fields 4 bool; } >>"$tmp/tree/daemon/objects/object.h"
"$check" "$tmp/tree/build" "$tmp/tree" >/dev/null || { echo 'a struct of 30 fields, or of 3 bools, is refused'; failures=$((failures + 1)); }
sound
fields 31 int >>"$tmp/tree/daemon/objects/object.h"
sees 'daemon/objects/object.h: struct many has 31 fields and 0 bools, more than 30 and 3'
sound
fields 5 bool >>"$tmp/tree/daemon/objects/object.h"
sees 'daemon/objects/object.h: struct many has 5 fields and 4 bools, more than 30 and 3'
sound
printf '%s\n' 'struct many {' '    bool a : 1, b;' '    uint8_t c : 1, wide : 2;' '    unsigned d : 1;' '};' \
  >>"$tmp/tree/daemon/objects/object.h"
sees 'daemon/objects/object.h: struct many has 5 fields and 4 bools, more than 30 and 3'
# The list of large structs has one more in a copy of the check, because this test must not depend on what is still on it.
sed "s|^large=(|&'daemon/objects/object.h object 31 0'|" "$check" >"$tmp/check-layers"
chmod +x "$tmp/check-layers"
check=$tmp/check-layers
sound
fields 31 int | sed 's/many/object/' >>"$tmp/tree/daemon/objects/object.h"
"$check" "$tmp/tree/build" "$tmp/tree" >/dev/null || { echo 'a struct of the list is refused'; failures=$((failures + 1)); }
sound
fields 30 int | sed 's/many/object/' >>"$tmp/tree/daemon/objects/object.h"
sees 'daemon/objects/object.h: struct object is small now: remove it from the list'

((failures == 0))
