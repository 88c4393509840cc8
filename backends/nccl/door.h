/* The socket at which the ranks of a group meet. ncclGetUniqueId opens it and starts a thread that waits there until
 * every rank has come, for ever where one never comes, and NCCL has no call that ends the two. A duplicate of the
 * socket does: when it is shut down, the thread's accept fails, and NCCL closes the socket and ends the thread.
 */
#ifndef NCCL_DOOR_H
#define NCCL_DOOR_H

#include "backends/nccl/nccl_api.h"

/* Returns the lowest descriptor that is free. NCCL's socket is not below it, if nobody closes one meanwhile. */
int door_lowest(void);

/* Returns a duplicate of the listening socket whose address is in the id, looking from `lowest` up. -1: there is
 * none; NCCL's thread then ends only when all ranks have come. */
int door_find(const struct nccl_id *id, int lowest);

/* Closes a duplicate; -1 is allowed. With `end`, NCCL's thread ends as well: not all ranks have come. */
void door_close(int door, bool end);

#endif
