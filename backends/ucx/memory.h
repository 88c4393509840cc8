/* Which memory UCX may be given, judged by its own answer. A UCX that does not know a GPU's memory takes its
 * addresses for the processor's, and reads or writes there: what ucp_context_query does not name is never
 * offered. */
#ifndef BACKENDS_UCX_MEMORY_H
#define BACKENDS_UCX_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <ucs/memory/memory_type.h>

struct ucx_memory {
    uint64_t types;        /* ucp_context_attr_t.memory_types; 0: it was not answered */
    unsigned major, minor; /* of the UCX that runs */
};

/* Of a memory kind of the daemon's. "cuda": from UCX 1.21 on, because earlier ones want the memory's GPU to
 * be current in the thread that calls them, and here that is a thread that knows no GPU. */
bool ucx_moves(const struct ucx_memory *memory, const char *kind);

/* NULL, or "" of kinds that nobody named: host memory. */
ucs_memory_type_t ucx_memory_type(const char *kind);

#endif
