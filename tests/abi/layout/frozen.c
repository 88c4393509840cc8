/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of the frozen headers. */
#include "tests/abi/layout/layout.h"
#include "tests/abi/v1/rdt_backend.h"

const struct thing frozen_things[] = {
#include "tests/abi/layout/things.h"
};
const size_t n_frozen_things = sizeof frozen_things / sizeof frozen_things[0];
