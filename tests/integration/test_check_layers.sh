#!/usr/bin/env bash
# check-layers passes a sound little tree, and sees each fault that is planted in it.
# variant: release
set -euo pipefail
check=$(cd "$(dirname "$0")/.." && pwd)/check-layers
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

sound() {
  rm -rf "$tmp/tree"
  mkdir -p "$tmp"/tree/{proto,client,daemon,backends/{host,ucx},tests/loopback,build/backends}
  cd "$tmp/tree"
  echo '#include <stdint.h>' >proto/rdt_status.h
  printf '%s\n' '#include "rdt_status.h"' '/* calls rdt_absent(1) */' 'void *rdt_connect(const char *socket);' >client/rdt.h
  echo '#include "rdt_status.h"' >backends/rdt_backend.h
  printf '#include %s\n' '"proto/rdt_status.h"' '"rdt.pb-c.h"' '<protobuf-c/protobuf-c.h>' >proto/frame.c
  printf '#include %s\n' '"client/rdt.h"' '"proto/rdt_status.h"' >client/client.c
  printf '#include %s\n' '<jansson.h>' '"rdt.h"' >client/rdtctl.c
  touch daemon/{list,object,plugin,transfer,rpc}.h backends/ucx/own.h backends/host/host.c
  printf '#include %s\n' '"daemon/transfer.h"' '"object.h"' '"backends/rdt_backend.h"' '<uv.h>' '<sys/socket.h>' >daemon/rpc_put.c
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

plant proto/frame.c '"daemon/list.h"' 'proto/frame.c: may not include daemon/list.h'
plant proto/frame.c '<uv.h>' 'proto/frame.c: may not include <uv.h>'
plant client/client.c '"daemon/list.h"' 'client/client.c: may not include daemon/list.h'
plant client/client.c '"backends/rdt_backend.h"' 'client/client.c: may not include backends/rdt_backend.h'
plant client/client.c '<jansson.h>' 'client/client.c: may not include <jansson.h>'
plant daemon/plugin.h '"client/rdt.h"' 'daemon/plugin.h: may not include client/rdt.h'
plant daemon/plugin.h '"backends/ucx/own.h"' 'daemon/plugin.h: may not include backends/ucx/own.h'
plant daemon/plugin.h '<ucp/api/ucp.h>' 'daemon/plugin.h: may not include <ucp/api/ucp.h>'
plant daemon/plugin.h '<cuda.h>' 'daemon/plugin.h: may not include <cuda.h>'
plant daemon/rpc_put.c '"daemon/rpc.h"' 'daemon/rpc_put.c: rpc is above rpc_put'
plant daemon/transfer.h '"daemon/rpc_put.c"' 'daemon/transfer.h: rpc_put is above transfer'
plant daemon/object.h '"transfer.h"' 'daemon/object.h: transfer is above object'
plant daemon/plugin.h '"daemon/object.h"' 'daemon/plugin.h: object is above plugin'
plant daemon/list.h '"daemon/plugin.h"' 'daemon/list.h: plugin is above list'
plant backends/ucx/ucx.c '"daemon/list.h"' 'backends/ucx/ucx.c: may not include daemon/list.h'
plant backends/ucx/ucx.c '"proto/frame.c"' 'backends/ucx/ucx.c: may not include proto/frame.c'
plant backends/host/host.c '"backends/ucx/own.h"' 'backends/host/host.c: may not include backends/ucx/own.h'
plant backends/host/host.c '<ucp/api/ucp.h>' 'backends/host/host.c: may not include <ucp/api/ucp.h>'
plant tests/loopback/x.c '"daemon/list.h"' 'tests/loopback/x.c: may not include daemon/list.h'
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

((failures == 0))
