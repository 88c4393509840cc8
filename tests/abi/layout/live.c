/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of the live headers. */
#include "backends/rdt_backend.h"
#include "tests/abi/layout/layout.h"

const struct thing live_things[] = {
#include "tests/abi/layout/things.h"
};
const size_t n_live_things = sizeof live_things / sizeof live_things[0];
