/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of a private mapping that this process wrote. Any thread, without a lock. */
#ifndef CLIENT_WRITTEN_H
#define CLIENT_WRITTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Drops them from a private, writable mapping of whole pages, which shows the bytes of its file everywhere afterwards, may be
 * written everywhere, and is as fast as before where it was only read. False, after which it may only be unmapped: the kernel
 * does not say which pages they are (there is no /proc, or the process may not read its own), they are locked, or the caller has
 * unmapped a part. */
bool written_drop(uint8_t *addr, size_t bytes);

#endif
