#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl trace writes the stages of transfers, and merges the files of two nodes: in the merged file the owner's
# side of a fetch lies within the reader's, and both have the flow of the object.
set -uo pipefail
. "$(dirname "$0")/../../support/daemon.sh"
dir=$(mktemp -d)
trap '{ kill "${pids[@]}"; wait; } 2>/dev/null; rm -rf "$dir"' EXIT
pids=()
ctl() { "$RDT_BUILD_DIR/rdtctl" --socket "$dir/$1.s" "${@:2}"; }
says() { grep -qF -- "$2" "$1" || bad "$1 does not say '$2': $(cat "$1")"; }
python=${PYTHON:-/usr/bin/python3}

umask 077
echo "a key of two nodes, long enough" >"$dir/key"
for node in a b; do
  serve "$dir/$node.s" "$dir/$node.log" --state-dir '' --key-file "$dir/key" --listen 127.0.0.1:0
  pids+=("$daemon")
done
"$python" -c 'import struct, sys
h = b"{\"w\":{\"dtype\":\"U8\",\"shape\":[4000000],\"data_offsets\":[0,4000000]}}"
open(sys.argv[1], "wb").write(struct.pack("<Q", len(h)) + h + bytes(4000000))' "$dir/w.safetensors"
ref=$(ctl a put -q "$dir/w.safetensors" --detached --id weights) || bad "no put"
ctl b fetch "$ref" -o "$dir/copy.safetensors" >/dev/null || bad "no fetch"
ctl a fetch weights -o "$dir/copy2.safetensors" >/dev/null || bad "no local fetch"

for node in a b; do ctl $node trace -o "$dir/$node.json" >"$dir/out" || bad "trace on $node"; done
says "$dir/out" 'of 1 node'
ctl a trace --merge "$dir/a.json" "$dir/b.json" -o "$dir/both.json" --format chrome >"$dir/out" || bad "merge"
says "$dir/out" 'of 2 nodes'
ctl b explain weights >"$dir/out" || bad "explain on b"
grep -Eq '^  stages: .*moving [0-9.]+ [mun]?s \([0-9.]+ .iB/s\)' "$dir/out" || bad "explain shows no stages: $(cat "$dir/out")"
ctl b explain weights --json >"$dir/out" || bad "explain on b"
says "$dir/out" '"stage": "moving"'
for format in perfetto svg; do # of earlier versions
  ctl b trace --format $format -o "$dir/x" 2>"$dir/why"; [[ $? == 2 && ! -e $dir/x ]] || bad "--format $format"
  says "$dir/why" 'the only format is chrome, which ui.perfetto.dev and chrome://tracing open'
done

cat >"$dir/check.py" <<'P'
import json, sys
dir = sys.argv[1]

# Chrome: each stage is a slice, and the end an instant.
both = json.load(open(f"{dir}/both.json"))
assert [n["name"].split(":")[0] for n in both["otherData"]["nodes"]] == ["127.0.0.1"] * 2
events = both["traceEvents"]
slices = [e for e in events if e["ph"] in "Xi"]
sides = {}
for e in slices:
    if e["args"]["object"] == "weights" and e["cat"] in ("in", "out"):
        sides.setdefault((e["pid"], e["cat"]), []).append(e)
out, into = sides[1, "out"], sides[2, "in"]
assert out[-1]["name"] == into[-1]["name"] == "done" and "moving" in [e["name"] for e in into]
flows = {e["args"]["flow"] for e in out + into} - {"0" * 16}
assert len(flows) == 1, flows
assert sum(e["ph"] == "s" for e in events) == 1 and sum(e["ph"] == "t" for e in events) >= 2
# The clocks agree within the round trip of the ping, which the files name: the reader asks before the owner is asked.
error = max(c["rtt_ns"] for f in ("a", "b") for c in json.load(open(f"{dir}/{f}.json"))["otherData"]["nodes"][0]["clocks"])
assert into[0]["args"]["at_ns"] <= out[0]["args"]["at_ns"] + error, (into[0], out[0], error)
assert out[0]["args"]["at_ns"] <= into[-1]["args"]["at_ns"] + error
P
"$python" "$dir/check.py" "$dir" || bad "the files are wrong"

# Only one transfer, only the last moments, and what is refused.
number=$("$python" -c 'import json, sys
print(next(e["tid"] for e in json.load(open(sys.argv[1]))["traceEvents"] if e.get("cat") == "in"))' "$dir/b.json")
[[ $(ctl b trace "$number" -o "$dir/x" --json) == *'"transfers": 1,'* ]] || bad "one transfer: $(ctl b trace "$number" -o "$dir/x")"
[[ $(ctl b trace absent -o "$dir/x") == '0 transfers (0 events) of 1 node' ]] || bad "an absent object"
[[ $(ctl b trace --last 1ms -o "$dir/x") == '0 transfers (0 events) of 1 node' ]] || bad "the last millisecond"
ctl b trace 2>"$dir/why"; [[ $? == 2 ]] || bad "without -o"
ctl b trace --merge "$dir/a.json" -o "$dir/x" 2>"$dir/why"; [[ $? == 2 ]] || bad "one file to merge"
ctl b trace --merge "$dir/a.json" "$dir/w.safetensors" -o "$dir/x" 2>"$dir/why" && bad "another file is merged"
says "$dir/why" 'w.safetensors: '
echo '{"traceEvents": []}' >"$dir/other.json"
ctl b trace --merge "$dir/a.json" "$dir/other.json" -o "$dir/x" 2>"$dir/why" && bad "a foreign file is merged"
says "$dir/why" 'was not written by rdtctl trace'
sed 's/"clocks":\[[^]]*\]/"clocks":[]/' "$dir/a.json" >"$dir/a2.json"
sed 's/"clocks":\[[^]]*\]/"clocks":[]/' "$dir/b.json" >"$dir/b2.json"
ctl b trace --merge "$dir/a2.json" "$dir/b2.json" -o "$dir/x" 2>"$dir/why" && bad "nodes without clocks are merged"
says "$dir/why" 'neither file says how the clocks of 127.0.0.1:'
ctl b trace -o "$dir/none/x" 2>"$dir/why" && bad "a folder that is not there"
says "$dir/why" 'cannot write'

# More than the ring has room for, in many pages: the newest are there. A fetch on the node leaves two records.
if PYTHONPATH=$RDT_BUILD_DIR/python "$python" -c 'import rdtd' 2>/dev/null; then
  PYTHONPATH=$RDT_BUILD_DIR/python "$python" -c 'import rdtd, sys
with rdtd.connect(sys.argv[1]) as c:
    ref = rdtd.Ref(sys.argv[2])
    for i in range(4500):
        c.fetch(ref)' "$dir/a.s" "$ref" || bad "fetches by Python"
  [[ $(ctl a trace -f chrome -o "$dir/x" --json) == *'"events": 8192,'* ]] || bad "the ring: $(ctl a trace -o "$dir/x")"
fi
if [[ $(id -u) == 0 ]]; then
  chmod 777 "$dir" "$dir/a.s"
  setpriv --reuid 4321 --clear-groups "$RDT_BUILD_DIR/rdtctl" --socket "$dir/a.s" trace -o "$dir/theirs" >"$dir/out" || bad "another user"
  [[ $(cat "$dir/out") == '0 transfers (0 events) of 1 node' ]] || bad "another user sees transfers: $(cat "$dir/out")"
fi
((failures == 0))
