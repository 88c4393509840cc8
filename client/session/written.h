/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of a private mapping that this process wrote. Any thread, without a lock. */
#ifndef CLIENT_WRITTEN_H
#define CLIENT_WRITTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Drops them from a private mapping of whole pages. Afterwards it shows the bytes of its file, and may be written, everywhere;
 * what was only read stays mapped. False, after which it may only be unmapped: the kernel does not say which pages they are
 * (there is no /proc, or the process may not read its own), they are locked, or the caller has unmapped a part. */
bool written_drop(uint8_t *addr, size_t bytes);

#endif
