#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# picture.sh >rdtd.svg: draws the picture of README.md. integration/admin/test_readme fails when rdtd.svg differs from this
# script's output.
set -euo pipefail

box() { # X Y WIDTH HEIGHT FILL TEXT ...: a box with centred lines of text
  local x=$1 y=$2 w=$3 h=$4 fill=$5 line at
  shift 5
  printf '<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="%s" stroke="#456"/>\n' "$x" "$y" "$w" "$h" "$fill"
  at=$((y + h / 2 + 5 - 9 * ($# - 1)))
  for line; do
    printf '<text x="%d" y="%d" text-anchor="middle">%s</text>\n' $((x + w / 2)) "$at" "$line"
    at=$((at + 18))
  done
}
arrow() { # X1 Y1 X2 Y2 COLOUR WIDTH [DASH]
  printf '<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="%s" stroke-dasharray="%s" ' "$1" "$2" "$3" "$4" "$5" "$6" "${7:-none}"
  printf 'marker-start="url(#tip)" marker-end="url(#tip)"/>\n'
}
label() { printf '<text x="%d" y="%d" text-anchor="%s" font-size="12" fill="%s">%s</text>\n' "$@"; }

node() { # X NAME: the actors, the daemon and the memory of one node
  local x=$1
  printf '<rect x="%d" y="10" width="330" height="290" rx="10" fill="#f7f9fb" stroke="#9ab"/>\n' "$x"
  label $((x + 12)) 30 start '#456' "$2"
  box $((x + 15)) 42 140 44 '#fff' 'actor (C)' 'librdt'
  box $((x + 175)) 42 140 44 '#fff' 'actor (Python)' 'librdt'
  arrow $((x + 85)) 90 $((x + 85)) 142 '#467' 1.5
  arrow $((x + 245)) 90 $((x + 245)) 142 '#467' 1.5
  label $((x + 165)) 120 middle '#467' 'Unix socket'
  box $((x + 15)) 146 300 60 '#dcebf7' 'rdtd' 'objects, holds, limits, deadlines'
  box $((x + 15)) 236 300 50 '#fdf0d5' 'memory: host, cuda' 'shared with the actors by file descriptor'
  arrow $((x + 165)) 208 $((x + 165)) 234 '#467' 1.5
}

cat <<'E2'
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 310" font-family="sans-serif" font-size="14">
<title>rdtd: one daemon per node; processes share memory, daemons move bytes</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0 8 4 0 8z" fill="#467"/></marker></defs>
<rect width="860" height="310" fill="#fff"/>
E2
node 10 'node A'
node 520 'node B'
arrow 328 170 532 170 '#467' 1.5 '5 3'
label 430 150 middle '#467' 'peer link: TLS 1.3,'
label 430 164 middle '#467' 'requests'
arrow 328 261 532 261 '#b60' 4
label 430 228 middle '#b60' 'the bytes: stream, ucx,'
label 430 244 middle '#b60' 'gloo, nccl or your plug-in'
echo '</svg>'
