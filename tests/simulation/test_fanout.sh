#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# variant: release
# seconds: 1200
# The goals of fan-out, for simulated nodes: the daemon's decisions keep the last node within these times of one reader's, send each byte
# about once, and leave nobody without it.
set -uo pipefail
failures=0
# goal LAST OWNER OPTIONS ...: the greatest time of the last healthy node, and the most that the owner may send, over the size
goal() {
  local line
  line=$("$RDT_BUILD_DIR/tests/simulation/fanout" "${@:3}") || { echo "FAILED: fanout ${*:3}"; failures=$((failures + 1)); return; }
  echo "${*:3}: $line"
  awk -v last="$1" -v owner="$2" -v options="${*:3}" '{
    for (i = 1; i <= NF; i++) if (split($i, f, "=") == 2) v[f[1]] = f[2]
    exit !(v["last"] <= last && v["owner_sent"] <= owner && v["node_received"] <= 1.1 && v["unfinished"] == 0 && v["wronged"] == 0 &&
         (v["found_slow"] == 0 || options ~ /-w/))
  }' <<<"$line" || { echo "FAILED: more than $1 times one reader, or the owner sent more than $2 times the bytes"; failures=$((failures + 1)); }
}
goal 1.05 1.1 -n 8
goal 1.05 1.1 -n 100
goal 1.15 1.1 -n 1000
goal 1.2 1.1 -n 100 -l 1000       # a lost packet for each thousandth 512 KiB
goal 1.4 1.1 -n 1000 -l 1000 -x 2 # nobody is taken for slow; the delays of a chain add up: rdt-concepts(7)
goal 1.3 1.1 -n 1000 -t 4 -l 1000 # four connections, as on nodes of 16 processors: a late chunk holds up no other
goal 1.2 1.1 -n 100 -k 8          # shards
goal 1.2 1.1 -n 100 -a 4          # one of four comes late
goal 1.2 1.1 -n 300 -w 20 -r      # one of 20 nodes has a tenth of the speed, and the owner knows which
goal 1.3 2.1 -n 100 -w 20 -x 2    # the owner must find out
goal 1.3 2.1 -n 100 -w 20 -x 559     # the first two readers are slow
goal 1.25 1.1 -n 100 -k 8 -w 20 -x 3 # a node that receives eight objects has an eighth of its link for each
goal 1.25 1.1 -n 1000 -w 20 -x 7     # wherever the slow nodes are: the worst seed of ten
goal 1.8 1.1 -n 100 -c 10         # one of ten shares its processors, and is not taken for slow
goal 1.3 1.2 -n 1000 -d 10        # ten die in the middle
goal 1.3 1.2 -n 100 -d 5 -z 2     # five die, and two freeze, which takes 0.3 s to notice
goal 1.3 1.2 -n 1000 -z 3         # three freeze
exit $((failures > 0))
