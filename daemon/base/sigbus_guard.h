/* Memory that somebody else can take away while it is read here: a client's hugetlb memfd with a hole punched in it and no page left to
 * fill it again. Touching it raises SIGBUS, in whatever thread happens to do so, a plug-in's included.
 *
 * Such mappings are entered in a table. A fault in one of them puts zeros under the address, marks the mapping as broken, and the
 * thread goes on; whoever used it asks afterwards. A fault anywhere else does what it would have done without this.
 *
 * Any thread. The handler itself takes no lock and allocates nothing.
 */
#ifndef DAEMON_GUARD_H
#define DAEMON_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#define GUARD_MAX 65536
#define GUARD_NONE (-1)

/* Takes SIGBUS. Once, before the first enter and after whoever else installs handlers (plug-ins). */
void sigbus_guard_install(void);

/* [addr, addr + bytes) consists of pages of page_bytes (a power of two that divides addr and bytes). GUARD_NONE: the table is full. */
int sigbus_guard_enter(const void *addr, uint64_t bytes, uint64_t page_bytes);

/* Before it is unmapped: nobody touches it any more. GUARD_NONE is fine. */
void sigbus_guard_leave(int slot);

/* Some page of it could not be had since it was entered. */
bool sigbus_guard_is_broken(int slot);

#endif
