/* SPDX-License-Identifier: Apache-2.0 */
/* Reads memory whose pages somebody else can take away, such as a client's hugetlb memfd with a hole that
 * no free page can fill. Touching such a page raises SIGBUS in the thread that does so, which may be a
 * plug-in's.
 *
 * Such mappings are entered in a table. A fault in one of them maps zeros at the address and marks the
 * mapping as broken, and the thread continues; the user of the mapping checks the mark afterwards. A fault
 * elsewhere has its usual effect.
 *
 * Any thread may call these functions. The signal handler takes no lock and allocates nothing. */
#ifndef DAEMON_SIGBUS_GUARD_H
#define DAEMON_SIGBUS_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#define GUARD_MAX 65536
#define GUARD_NONE (-1)

/* Installs the SIGBUS handler. Call it once, before the first sigbus_guard_enter and after others that
 * install handlers (plug-ins). */
void sigbus_guard_install(void);

/* Enters [addr, addr + bytes), which consists of pages of page_bytes (a power of two that divides addr and
 * bytes). Returns its slot, or GUARD_NONE if the table is full. */
int sigbus_guard_enter(const void *addr, uint64_t bytes, uint64_t page_bytes);

/* Removes the mapping before it is unmapped; nobody may touch it any more. Accepts GUARD_NONE. */
void sigbus_guard_leave(int slot);

/* Whether a page of the mapping was missing since it was entered. */
bool sigbus_guard_is_broken(int slot);

#endif
