/* SPDX-License-Identifier: Apache-2.0 */
/* See memory.h. */
#include "backends/ucx/memory.h"

#include <strings.h>

#define CUDA_MAJOR 1u
#define CUDA_MINOR 21u

static bool supports(const struct ucx_memory *memory, ucs_memory_type_t type)
{
    return memory->types >> type & 1;
}

bool ucx_moves(const struct ucx_memory *memory, const char *kind)
{
    bool newer = memory->major > CUDA_MAJOR || (memory->major == CUDA_MAJOR && memory->minor >= CUDA_MINOR);

    if (strcasecmp(kind, "host") == 0)
        return true; /* every UCX moves host memory, even if the query failed */
    return strcasecmp(kind, "cuda") == 0 && newer && supports(memory, UCS_MEMORY_TYPE_CUDA);
}

ucs_memory_type_t ucx_memory_type(const char *kind)
{
    return kind && strcasecmp(kind, "cuda") == 0 ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}
