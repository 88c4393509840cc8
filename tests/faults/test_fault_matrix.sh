#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one round of the fault matrix for each event and step, each at a different place. `make fault-matrix` runs all of it.
exec "$RDT_BUILD_DIR/tests/faults/fault_matrix" --sample --rounds 1 --jobs 2
