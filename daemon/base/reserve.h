/* SPDX-License-Identifier: Apache-2.0 */
/* Address space in reserve for libuv, which ends the process when an allocation fails, for example when the table of
 * descriptors grows with a new connection. When the process has no address space left, the reserve is released and libuv gets
 * its memory from it. The daemon then accepts no connection until it holds a reserve again, so that the next allocation
 * succeeds, too. All other code of the daemon fails the request when an allocation fails.
 *
 * Any thread may call these functions. */
#ifndef DAEMON_RESERVE_H
#define DAEMON_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

/* Makes libuv allocate from the reserve if nothing else is left. Before any other call of libuv. */
void reserve_install(void);

/* Takes the reserve unless it is held. Returns whether it is held. */
bool reserve_hold(void);

/* realloc, from the reserve if nothing else is left; NULL: that is not enough. */
void *reserve_realloc(void *memory, size_t bytes);

#endif
