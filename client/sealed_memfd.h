/* Memory that this process makes for one snapshot: its tensors written there one behind the other by the kernel, which neither zeroes it
 * before nor takes a fault for each page, and sealed, so that whoever gets it may rely on what it says.
 */
#ifndef CLIENT_MADE_H
#define CLIENT_MADE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout.h"
#include "rdt.h"

/* Those of the layout's tensors that are to be copied (how[i] is COPIED) and have elements, each contiguous at the address that is its
 * offset, as layout_packed has them: `bytes` in all. The caller's fd; -1: it is to be done otherwise, whatever the reason. */
int sealed_memory(const struct layout *layout, const enum rdt_memory *how, uint64_t bytes);

/* A file may have so many bytes here (RLIMIT_FSIZE): to write more raises SIGXFSZ. */
bool sealed_may_write(uint64_t bytes);

#endif
