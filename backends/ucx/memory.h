/* SPDX-License-Identifier: Apache-2.0 */
/* Which kinds of memory the loaded UCX supports. A UCX without support for GPU memory would take GPU addresses for host
 * addresses, and read or write there. So the transport moves only the kinds that ucp_context_query names. */
#ifndef BACKENDS_UCX_MEMORY_H
#define BACKENDS_UCX_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ucs/memory/memory_type.h>

struct ucx_memory {
    uint64_t types;        /* ucp_context_attr_t.memory_types; 0: the query failed */
    unsigned major, minor; /* version of the loaded UCX */
    bool module;           /* its module for CUDA is installed */
};

/* Appends the transports of the module for CUDA to a list of UCX's transports, where the module is there, the version serves,
 * and the list neither names them already nor excludes others (^). text_p has `size` bytes. */
void ucx_add_cuda(const struct ucx_memory *memory, const char *tls, char *text_p, size_t size);

/* Says why the transport does not move "cuda", which ucx_moves says, and what to do about it. text_p has `size` bytes. */
void ucx_why_not(const struct ucx_memory *memory, char *text_p, size_t size);

/* Returns whether UCX moves a memory kind of the daemon. "cuda" needs UCX 1.21, because earlier versions expect that the
 * memory's GPU is current in the calling thread, and the data threads use no GPU. */
bool ucx_moves(const struct ucx_memory *memory, const char *kind);

/* Returns UCX's type for a memory kind; any kind but "cuda", also NULL, stands for host memory. */
ucs_memory_type_t ucx_memory_type(const char *kind);

#endif
