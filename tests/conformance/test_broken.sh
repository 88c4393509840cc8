#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The check for it finds each fault of the broken plug-in, and without a fault no check fails.
# variant: release
# seconds: 900
set -uo pipefail
check=$RDT_BUILD_DIR/rdt-check-backend so=$RDT_BUILD_DIR/tests/rdt_broken.so
failures=0
finds() { # FAULT ONLY TEXT [STATUS]: those checks fail, saying this. A check that does not end is given $seconds.
  local out status
  out=$(BROKEN=$1 "$check" --set "directory=$TMPDIR" --only "$2" --deadline "${seconds:-120}" "$so" 2>&1)
  status=$?
  if [[ $status == "${4:-1}" ]] && grep -qE "$3" <<<"$out"; then return; fi
  echo "$1: status $status instead of ${4:-1}, or nobody says \"$3\":"
  echo "$out"
  failures=$((failures + 1))
}
finds '' cancel '^[1-9][0-9]* ok, 0 failed' 0
finds '' ports '^[1-9][0-9]* ok, 0 failed' 0
finds '' memory '^[1-9][0-9]* ok, 0 failed' 0
# the table
finds gives_no_table '' 'is no backend' 2
finds another_abi '' 'made for ABI version 2' 2
finds has_half_a_pair table_is_sound 'a send needs a receive'
# life
seconds=5 finds hangs_in_open sides 'it does not end: killed after 5 s'
finds refuses_without_a_word open_without_trust 'does not name what is to be set'
finds logs_errors sides 'logged errors'
finds leaves_descriptors_open open_and_close 'open and close left [0-9]+ descriptors'
finds leaks_a_descriptor_per_connection connections_leave 'descriptors after'
# ports
finds opens_a_port_for_nobody none_without_peers 'opens a port at 127.0.0.1'
finds listens_at_every_address none_at_every_address 'listens at 0.0.0.0'
# bytes
finds flips_a_bit receives_of_all_sizes 'came in wrong'
finds writes_beside receives_of_all_sizes 'guarded_margins_hold'
seconds=5 finds loses_the_end_of_a_receive receives_of_all_sizes 'did not end|does not end'
finds claims_success another_length 'passed for 1000'
# ends
finds ends_twice cancel_of_an_unmatched 'n_done'
finds ends_inside_the_post inside_their_post 'called inside post_send'
finds cancel_does_nothing cancel_of_an_unmatched 'a cancelled receive goes on'
seconds=5 finds never_closes disconnect_ends_every 'conn_closed did not come|does not end'
finds closes_twice receives_of_all_sizes 'n_closed'
finds writes_after_it_closed nothing_is_written 'landed after conn_closed|came in wrong|crashed'
finds hides_the_peers_end killed_peer 'the end of the peer was not noticed'
# the hostile
finds takes_any_offer malformed_offer 'RDT_OK'
finds crashes_on_garbage garbage 'it crashed: Segmentation fault'
finds crashes_in_a_post sends_of_all 'it crashed: Segmentation fault'
finds claims_any_memory unknown_memory "it moves memory of kind"
finds claims_another_side sides_follow 'RDT_ONE_SIDED'
# memory
finds gives_nothing_away nothing_and_too_much '0 bytes are given out'
finds memory_is_dirty zeroed 'bytes were not zero|somebody else had'
finds copies_whole_words copies_of_all 'is wrong'
finds shares_writable_for_reading read_only 'for reading is mapped writable'
finds imports_anything hostile_imports 'is imported'
finds keeps_what_is_freed cycles_leave 'descriptors'
((failures == 0))
