#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Metrics count what happened. promtool accepts them, a real Prometheus scrapes rdtd-exporter in both formats, and the
# dashboard uses only metrics that exist. Strangers that connect to the exporter's port get an answer. A daemon that has
# ended or hangs gives a 503 within the time limit.
# variant: release
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
. tests/support/code_blocks.sh
dir=$(mktemp -d)
pids=()
trap '{ kill -CONT "$daemon"; kill "${pids[@]}" "$daemon"; wait; } 2>/dev/null; rm -rf "$dir"' EXIT
free_port() { "${PYTHON:-/usr/bin/python3}" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# value METRIC: its value, as rdtctl prints it; METRIC with its labels.
value() { rdtctl metrics --format prometheus | awk -v metric="$1" 'index($0, metric " ") == 1 {print $NF}'; }

start_daemon "$dir" || exit 1
{ printf '\x50\0\0\0\0\0\0\0%-80s' '{"w":{"dtype":"U8","shape":[1000000],"data_offsets":[0,1000000]}}'
  head -c 1000000 /dev/zero; } >"$dir/a.safetensors"
ref=$(rdtctl put -q --detached "$dir/a.safetensors") || bad "put failed"
rdtctl fetch -q "$ref" -o "$dir/b.safetensors" || bad "fetch failed"
rdtctl fetch -q o-1 -o "$dir/c.safetensors" --timeout 50ms 2>/dev/null && bad "a fetch of nothing succeeded"
before=$(value 'rdtd_requests_total{verb="PING",status="OK"}')
rdtctl ping -q --count 10
(($(value 'rdtd_requests_total{verb="PING",status="OK"}') == before + 10)) || bad "ten pings are not ten requests"
(($(value 'rdtd_request_duration_seconds_bucket{verb="PING",le="+Inf"}') == before + 10)) || bad "the histogram misses pings"
[[ $(value 'rdtd_transfer_bytes_total{path="local/share",direction="local"}') == 1000000 ]] ||
  bad "bytes: $(rdtctl metrics | grep transfer_bytes)"
[[ $(value 'rdtd_transfers_total{path="local/share",direction="local",outcome="done"}') == 1 ]] ||
  bad "transfers: $(rdtctl metrics | grep transfers_total)"
[[ $(value 'rdtd_transfers_total{path="",direction="local",outcome="done"}') =~ ^0?$ ]] ||
  bad "a transfer without a path is done"
(($(value 'rdtd_owner_memory_bytes{uid="'"$(id -u)"'",tenant=""}') >= 1000000)) || bad "the user uses no memory"
(($(value rdtd_objects) == 1)) || bad "objects: $(value rdtd_objects)"
rdtctl metrics | tail -n 1 | grep -qx '# EOF' || bad "OpenMetrics does not end in # EOF"
rdtctl metrics --format prometheus -o "$dir/rdtd.prom" && [[ $(stat -c %a "$dir/rdtd.prom") == 644 ]] ||
  bad "--output wrote no readable file"
rdtctl metrics -o "$dir/no/rdtd.prom" 2>"$dir/why" && bad "--output into no folder succeeded"
grep -q 'SYSTEM: .*no/rdtd.prom' "$dir/why" || bad "--output: $(cat "$dir/why")"

# Another user sees nobody's share but his own.
if [[ $(id -u) == 0 ]]; then
  chmod 755 "$dir"
  setpriv --reuid 4321 --clear-groups rdtctl metrics >"$dir/other" || bad "another user gets no metrics"
  grep 'rdtd_owner_memory_bytes{' "$dir/other" | grep -qv 'uid="4321"' &&
    bad "another user sees others: $(grep rdtd_owner_memory "$dir/other")"
fi

# The dashboard.
rdtctl metrics --format prometheus | awk '/^# TYPE/ {print $3; if ($4 == "histogram") print $3 "_bucket"}' >"$dir/families"
for metric in $(grep -oE '\brdtd_[a-z_]+' systemd/rdtd-grafana.json | sort -u); do
  grep -qx "$metric" "$dir/families" || bad "the dashboard asks for $metric, which does not exist"
done
"${PYTHON:-/usr/bin/python3}" -m json.tool systemd/rdtd-grafana.json >/dev/null || bad "the dashboard is no JSON"

# ---- the exporter ----

if [[ ! -x $RDT_BUILD_DIR/rdtd-exporter ]]; then
  ((failures == 0)) || exit 1
  echo "rdtd-exporter was not built: libmicrohttpd is missing"
  exit 77
fi

get() { # SOCKET [HEADER]: the answer to GET /metrics
  "${PYTHON:-/usr/bin/python3}" - "$@" <<'PY'
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
s.connect(sys.argv[1])
s.sendall(("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n" % "".join(h + "\r\n" for h in sys.argv[2:])).encode())
while data := s.recv(65536):
    sys.stdout.write(data.decode())
PY
}
rdtd-exporter --listen "unix:$dir/http" & pids+=($!)
until_true test -S "$dir/http"
get "$dir/http" >"$dir/text"
grep -q '^HTTP/1.1 200' "$dir/text" && grep -q 'text/plain; version=0.0.4' "$dir/text" || bad "GET: $(head -5 "$dir/text")"
get "$dir/http" 'Accept: application/openmetrics-text;version=1.0.0' >"$dir/text"
grep -q 'application/openmetrics-text; version=1.0.0' "$dir/text" && grep -q '^# EOF' "$dir/text" ||
  bad "GET: $(head -5 "$dir/text")"

rdtd-exporter --listen "unix:$dir/http" 2>"$dir/why" && bad "a second exporter listens at the same path"
grep -q 'Address already in use' "$dir/why" || bad "a second exporter: $(cat "$dir/why")"
for wrong in nowhere :1 unix:/no/such/folder/s 127.0.0.1:x; do
  timeout 10 rdtd-exporter --listen "$wrong" 2>"$dir/why"
  [[ $? == 2 && -s $dir/why ]] || bad "--listen $wrong: $(cat "$dir/why")"
done

# Strangers who send nothing, half a request, or noise take no thread from others for long.
"${PYTHON:-/usr/bin/python3}" - "$dir/http" <<'PY' || bad "silent strangers keep others away"
import socket, sys
held = []
for i in range(100):
    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); held.append(s)
    s.sendall([b"", b"GET /metr", b"\0\xff" * 4000 + b"\r\n\r\n"][i % 3])
s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(sys.argv[1])
s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
sys.exit(b"200" not in s.recv(100))
PY

# Strangers at several addresses that send a byte now and then keep no scrape away, and their time is over nevertheless.
port=$(free_port)
rdtd-exporter --listen "127.0.0.1:$port" & pids+=($!)
until_true bash -c ": >/dev/tcp/127.0.0.1/$port" 2>/dev/null
"${PYTHON:-/usr/bin/python3}" - "$port" <<'PY' || bad "slow strangers keep others away"
import select, socket, sys, time
port = int(sys.argv[1])
slow = []
for i in range(320):
    s = socket.create_connection(("127.0.0.1", port), 60, source_address=("127.0.0.%d" % (2 + i // 64), 0))
    s.sendall(b"GET /metrics HTTP/1.1\r\nX-a: ")
    slow.append(s)
s = socket.create_connection(("127.0.0.1", port), 60)
s.settimeout(60)
s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
if b"200" not in s.recv(100):
    sys.exit("no answer")
until = time.monotonic() + 60
while slow:
    ended, _, _ = select.select(slow, [], [], 1)
    for s in ended:
        s.close()
        slow.remove(s)
    for s in slow:
        try:
            s.send(b"a")
        except OSError:
            pass
    if time.monotonic() > until:
        sys.exit("%d slow connections live on" % len(slow))
PY

# ---- promtool and Prometheus ----

PATH=$PATH:$PWD/build/prometheus/usr/bin
if ! command -v promtool >/dev/null && command -v apt-get >/dev/null; then # without installing a service on this machine
  mkdir -p build/prometheus
  (cd build/prometheus && apt-get download -qq prometheus && dpkg -x prometheus_*.deb . &&
    rm prometheus_*.deb) >/dev/null 2>&1 || rm -rf build/prometheus
fi
if command -v promtool prometheus >/dev/null; then
  rdtctl metrics --format prometheus | promtool check metrics >"$dir/why" 2>&1 || bad "promtool: $(cat "$dir/why")"
  [[ ! -s $dir/why ]] || bad "promtool: $(cat "$dir/why")"
  port=$(free_port)
  rdtd-exporter --listen "127.0.0.1:$port" & pids+=($!)
  printf 'global: {scrape_interval: 1s}\nscrape_configs: [{job_name: rdtd, static_configs: [{targets: ["127.0.0.1:%d"]}]}]\n' "$port" >"$dir/prometheus.yml"
  web=$(free_port)
  prometheus --config.file="$dir/prometheus.yml" --storage.tsdb.path="$dir/tsdb" --web.listen-address="127.0.0.1:$web" \
    >"$dir/prometheus.log" 2>&1 & pids+=($!)
  for query in 'rdtd_transfer_bytes_total{path="local/share"} == 1000000' 'up{job="rdtd"} == 1' \
    'histogram_quantile(0.5, rdtd_request_duration_seconds_bucket{verb="PING"}) > 0'; do
    until_true sh -c "promtool query instant http://127.0.0.1:$web '$query' | grep -q ." || tail -n 5 "$dir/prometheus.log"
  done
else
  echo "promtool was not found and could not be downloaded: only the text was checked"
fi

# ---- a daemon that hangs, and one that is gone ----

kill -STOP "$daemon"
get "$dir/http" >"$dir/text"
grep -q '^HTTP/1.1 503' "$dir/text" && grep -q 'TIMED_OUT' "$dir/text" || bad "a daemon that hangs: $(cat "$dir/text")"
kill -CONT "$daemon"
kill "$daemon"
wait "$daemon"
get "$dir/http" >"$dir/text"
grep -q '^HTTP/1.1 503' "$dir/text" && grep -q 'is the daemon running' "$dir/text" ||
  bad "a daemon that is gone: $(cat "$dir/text")"
kill "${pids[0]}" || bad "the exporter has crashed"
wait "${pids[0]}" || bad "the exporter ended with $?"
[[ ! -e $dir/http ]] || bad "the exporter left its socket"
((failures == 0))
