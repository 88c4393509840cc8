#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rdtctl trace writes the stages of transfers in three formats, and merges the files of two nodes: in the merged file the owner's
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

for node in a b; do ctl $node trace --format chrome -o "$dir/$node.json" >"$dir/out" || bad "trace on $node"; done
says "$dir/out" 'of 1 nodes'
ctl b trace weights --format svg -o "$dir/b.svg" -q || bad "svg"
"$python" -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$dir/b.svg" || bad "the SVG is no XML"
says "$dir/b.svg" '<title>moving, '
ctl b trace -o "$dir/b.perfetto" >/dev/null || bad "perfetto"
ctl a trace --merge "$dir/a.json" "$dir/b.json" -o "$dir/both.json" --format chrome >"$dir/out" || bad "merge"
says "$dir/out" 'of 2 nodes'
ctl a trace --merge "$dir/a.json" "$dir/b.json" -o "$dir/both.perfetto" -q || bad "merge to perfetto"

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

# Perfetto: read by the numbers of its fields. Every slice that begins ends, on a track that was described before.
def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
def fields(data):
    at, result = 0, []
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 1:
            value, at = int.from_bytes(data[at:at + 8], "little"), at + 8
        else:
            assert tag & 7 == 2, tag
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        result.append((tag >> 3, value))
    return result
for name, nodes in (("b.perfetto", 1), ("both.perfetto", 2)):
    tracks, processes, depth, names, flow_ids, last = {}, 0, {}, set(), set(), 0
    for number, packet in fields(open(f"{dir}/{name}", "rb").read()):
        assert number == 1
        packet = dict(fields(packet))
        if 60 in packet:
            track = dict(fields(packet[60]))
            processes += 3 in track
            assert 3 in track or track[5] in tracks
            tracks[track[1]] = track
        else:
            event = dict(fields(packet[11]))
            assert event[11] in tracks and packet[58] == 3
            depth[event[11]] = depth.get(event[11], 0) + {1: 1, 2: -1, 3: 0}[event[9]]
            assert 0 <= depth[event[11]] <= 1
            if 23 in event:
                names.add(event[23].decode())
            if 47 in event:
                flow_ids.add(event[47])
    assert processes == nodes and not any(depth.values()) and {"moving", "done"} <= names and len(flow_ids) >= 1, (name, names)
P
"$python" "$dir/check.py" "$dir" || bad "the files are wrong"

# Only one transfer, only the last moments, and what is refused.
number=$("$python" -c 'import json, sys
print(next(e["tid"] for e in json.load(open(sys.argv[1]))["traceEvents"] if e.get("cat") == "in"))' "$dir/b.json")
[[ $(ctl b trace "$number" -o "$dir/x" --json) == *'"transfers": 1,'* ]] || bad "one transfer: $(ctl b trace "$number" -o "$dir/x")"
[[ $(ctl b trace absent -o "$dir/x") == '0 transfers (0 events) of 1 nodes' ]] || bad "an absent object"
[[ $(ctl b trace --last 1ms -o "$dir/x") == '0 transfers (0 events) of 1 nodes' ]] || bad "the last millisecond"
ctl b trace 2>"$dir/why"; [[ $? == 2 ]] || bad "without -o"
ctl b trace --merge "$dir/a.json" -o "$dir/x" 2>"$dir/why"; [[ $? == 2 ]] || bad "one file to merge"
ctl b trace --merge "$dir/a.json" "$dir/b.svg" -o "$dir/x" 2>"$dir/why" && bad "an SVG is merged"
says "$dir/why" 'b.svg: '
echo '{"traceEvents": []}' >"$dir/other.json"
ctl b trace --merge "$dir/a.json" "$dir/other.json" -o "$dir/x" 2>"$dir/why" && bad "a foreign file is merged"
says "$dir/why" 'was not written by rdtctl trace --format chrome'
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
  [[ $(ctl a trace -f svg -o "$dir/x" --json) == *'"events": 8192,'* ]] || bad "the ring: $(ctl a trace -o "$dir/x")"
fi
if [[ $(id -u) == 0 ]]; then
  chmod 777 "$dir" "$dir/a.s"
  setpriv --reuid 4321 --clear-groups "$RDT_BUILD_DIR/rdtctl" --socket "$dir/a.s" trace -o "$dir/theirs" >"$dir/out" || bad "another user"
  [[ $(cat "$dir/out") == '0 transfers (0 events) of 1 nodes' ]] || bad "another user sees transfers: $(cat "$dir/out")"
fi
((failures == 0))
