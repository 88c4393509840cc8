/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's bootstrap socket, to which the ranks of a group first connect. ncclGetUniqueId opens it and starts a thread that
 * accepts connections until every rank has connected, if need be for ever; NCCL has no call that ends the two. A duplicate of
 * the socket can: when it is shut down, the thread's accept fails, and NCCL closes the socket and ends the thread.
 */
#ifndef NCCL_BOOTSTRAP_H
#define NCCL_BOOTSTRAP_H

#include "backends/nccl/nccl_api.h"

/* Returns the lowest free descriptor. The socket that NCCL opens next is not below it, unless another thread closes a
 * descriptor in between. */
int bootstrap_lowest_fd(void);

/* Searches the descriptors from `lowest` up for the listening socket whose address is in the id, and returns a duplicate of it.
 * -1: none was found; NCCL's thread then ends only when all ranks have connected. */
int bootstrap_find(const struct nccl_id *id, int lowest);

/* Closes a duplicate; -1 is allowed. `end` also ends NCCL's thread, for a group of which not all ranks have connected. */
void bootstrap_close(int fd, bool end);

#endif
