/* SPDX-License-Identifier: Apache-2.0 */
/* See memory.h. */
#include "backends/ucx/memory.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define CUDA_MAJOR 1u
#define CUDA_MINOR 21u

static bool supports(const struct ucx_memory *memory, ucs_memory_type_t type)
{
    return memory->types >> type & 1;
}

static bool is_new_enough(const struct ucx_memory *memory)
{
    return memory->major > CUDA_MAJOR || (memory->major == CUDA_MAJOR && memory->minor >= CUDA_MINOR);
}

void ucx_add_cuda(const struct ucx_memory *memory, const char *tls, char *text_p, size_t size)
{
    bool add =
        memory->module && is_new_enough(memory) && *tls && *tls != '^' && strcmp(tls, "all") != 0 && !strstr(tls, "cuda");

    (void)snprintf(text_p, size, "%s%s", tls, add ? ",cuda_copy,cuda_ipc" : "");
}

void ucx_why_not(const struct ucx_memory *memory, char *text_p, size_t size)
{
    if (!is_new_enough(memory))
        (void)snprintf(text_p, size, "UCX %u.%u is loaded, and this needs %u.%u or later with its module for CUDA",
                       memory->major, memory->minor, CUDA_MAJOR, CUDA_MINOR);
    else if (!memory->module)
        (void)snprintf(text_p, size, "UCX %u.%u is loaded without libuct_cuda, its module for CUDA: install it", memory->major,
                       memory->minor);
    else
        (void)snprintf(text_p, size,
                       "UCX %u.%u has its module for CUDA, but cannot use it: is there a driver, and does tls (or "
                       "UCX_TLS) leave cuda_copy out?",
                       memory->major, memory->minor);
}

bool ucx_moves(const struct ucx_memory *memory, const char *kind)
{
    if (strcasecmp(kind, "host") == 0)
        return true; /* every UCX moves host memory, even if the query failed */
    return strcasecmp(kind, "cuda") == 0 && is_new_enough(memory) && supports(memory, UCS_MEMORY_TYPE_CUDA);
}

ucs_memory_type_t ucx_memory_type(const char *kind)
{
    return kind && strcasecmp(kind, "cuda") == 0 ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}
