/* SPDX-License-Identifier: Apache-2.0 */
/* A memfd that this process creates for one snapshot. The kernel writes the tensors into it one after another, which
 * neither zeroes the pages before nor takes a page fault for each. It is sealed, so that the daemon may rely on its bytes. */
#ifndef CLIENT_SEALED_MEMFD_H
#define CLIENT_SEALED_MEMFD_H

#include <stdbool.h>
#include <stdint.h>

#include "client/rdt.h"
#include "proto/layout.h"

/* Writes the tensors of the layout that are copied (how[i] is COPIED) and have elements. Each is contiguous at
 * the address that is its offset; with padding they take `bytes`. Returns the sealed memfd, the caller's, or -1
 * if it could not be created for any reason: then the tensors are copied in another way. */
int sealed_memory(const struct layout *layout, const enum rdt_memory *how, uint64_t bytes);

/* Says whether RLIMIT_FSIZE lets this process write a file of `bytes`. Writing more would raise SIGXFSZ. */
bool sealed_may_write(uint64_t bytes);

#endif
