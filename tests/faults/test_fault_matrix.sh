#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A round of the fault matrix for each event and step, at a place that differs from one to the next. `make fault-matrix` runs it all.
exec "$RDT_BUILD_DIR/tests/faults/fault_matrix" --sample --rounds 1 --jobs 2
