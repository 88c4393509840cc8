/* SPDX-License-Identifier: Apache-2.0 */
/* For the fake device's own files. */
#ifndef TESTS_FAKE_DEVICE_H
#define TESTS_FAKE_DEVICE_H

#include "backends/rdt_backend.h"

/* Where the plug-in itself sees what the daemon takes for an address of the block. */
uint8_t *fake_real_address(const struct rdt_block *block, const void *addr);

#endif
