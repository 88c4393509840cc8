#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# seconds: 900
# rdt-check-backend finds nothing wrong with any plug-in of this tree, however it is configured, nor with the plug-in
# of the frozen interface.
set -uo pipefail
cd "$(dirname "$0")/../.."
check=$RDT_BUILD_DIR/rdt-check-backend
failures=0
over() { # PLUGIN SETTING ...
  local so=$1 set=() out
  shift
  for setting in "$@"; do set+=(--set "$setting"); done
  out=$("$check" --deadline 240 ${set[@]+"${set[@]}"} "$RDT_BUILD_DIR/$so" 2>&1) || { failures=$((failures + 1)); echo "$out"; return; }
  echo "$so $*: $(tail -n 1 <<<"$out")"
  grep -q '^[1-9][0-9]* ok, 0 failed' <<<"$out" || { failures=$((failures + 1)); echo "$out"; } # it must have checked something
}
over backends/rdt_host.so
over tests/rdt_fake.so                      # memory on devices, without copy and without memfds
over tests/rdt_v1.so "directory=$TMPDIR"
over tests/rdt_loopback.so
over backends/rdt_ucx.so
over backends/rdt_stream.so                # bare: the network is trusted
over backends/rdt_stream.so encrypt=always
over backends/rdt_stream.so encrypt=always threads=3 connections=3 rekey_bytes=1048576 # chunks overtake each other
over tests/rdt_grouped.so
[[ ! -e $RDT_BUILD_DIR/backends/rdt_gloo.so ]] || over backends/rdt_gloo.so
((failures == 0))
