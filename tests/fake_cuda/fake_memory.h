/* What the fake driver's files on memory share.
 *
 *   memory.c   chunks, and the address ranges that they are mapped in; what an address is
 *   legacy.c   cuMemAlloc, and legacy handles
 *   vmm.c      cuMemCreate and its kin
 *   pinned.c   host memory
 *
 * All that is declared here but fake_no_context_or is called with fake_mutex held.
 */
#ifndef FAKE_CUDA_MEMORY_H
#define FAKE_CUDA_MEMORY_H

#include <stddef.h>

#include "tests/fake_cuda/fake_cuda.h"

struct chunk { /* one physical allocation, or an import of it */
    int fd;
    size_t bytes;
    CUdevice device;
    unsigned refs; /* handles of it, and mappings */
    bool imported; /* it counts where it was made */
    bool legacy;
    bool closed; /* made without a type of handle: it cannot be exported */
};

struct mapping {
    struct chunk *chunk;
    size_t offset, bytes; /* in the range */
    bool open;            /* cuMemSetAccess has been called */
    struct mapping *next;
};

struct range { /* addresses nobody may touch; `alias` is where the fake does */
    char *base, *alias;
    size_t bytes;
    struct mapping *mappings; /* in order of offset */
    char handle[64];          /* of an open legacy handle */
    bool opened;
    struct range *next;
};

extern struct range *fake_ranges;

struct chunk *fake_chunk_new(CUdevice device, size_t bytes, int fd, bool legacy); /* fd: it is imported by this, which it takes; or -1 */
void fake_chunk_unref(struct chunk *chunk);

struct range *fake_range_new(size_t bytes);
void fake_range_free(struct range *range);
struct range *fake_range_at(CUdeviceptr address); /* NULL: none */
struct mapping *fake_mapping_at(CUdeviceptr address, struct range **range_p);
bool fake_map(struct range *range, size_t offset, struct chunk *chunk, bool open);
void fake_unmap(struct range *range, struct mapping *mapping);

CUresult fake_no_context_or(CUresult result); /* INVALID_CONTEXT on a thread without one */

#endif
