/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake driver's files on memory share.
 *
 *   memory.c   chunks, the address ranges into which they are mapped, and queries about addresses
 *   legacy.c   cuMemAlloc, and legacy handles
 *   vmm.c      virtual memory management: cuMemCreate and the functions that belong to it
 *   pinned.c   pinned host memory
 *
 * The caller of every function declared here, except fake_no_context_or, holds fake_mutex.
 */
#ifndef FAKE_CUDA_MEMORY_H
#define FAKE_CUDA_MEMORY_H

#include <stddef.h>

#include "tests/fake_cuda/fake_cuda.h"

struct chunk { /* one physical allocation, or an import of it */
    int fd;
    size_t bytes;
    CUdevice device;
    unsigned refs; /* its handles and mappings */
    bool imported; /* its bytes are counted in the process that allocated it */
    bool legacy;   /* of cuMemAlloc */
    bool closed;   /* created without a type of handle, so that it cannot be exported */
};

struct mapping {
    struct chunk *chunk;
    size_t offset, bytes; /* in the range */
    bool open;            /* cuMemSetAccess has been called */
    unsigned reach;       /* bit i: for GPU i */
    struct mapping *next;
};

struct suballocation { /* an allocation of cuMemAlloc: all or a part of a range */
    CUdeviceptr base;
    size_t bytes;
    struct suballocation *next;
};

struct range { /* addresses that nobody may touch; the fake reads and writes the memory at `alias` */
    char *base, *alias;
    size_t bytes;
    struct mapping *mappings;             /* in order of offset */
    struct suballocation *suballocations; /* of cuMemAlloc */
    size_t filled;                        /* by suballocations, also by those that were freed */
    char handle[64];                      /* of an open legacy handle */
    bool opened;
    struct range *next;
};

extern struct range *fake_ranges;

/* Imports the chunk that fd stands for, and takes the fd; with -1 it allocates one. NULL: no memory. */
struct chunk *fake_chunk_new(CUdevice device, size_t bytes, int fd, bool legacy);
void fake_chunk_unref(struct chunk *chunk);

struct range *fake_range_new(size_t bytes);
void fake_range_free(struct range *range);
struct range *fake_range_at(CUdeviceptr address); /* NULL: none */
struct mapping *fake_mapping_at(CUdeviceptr address, struct range **range_p);
bool fake_map(struct range *range, size_t offset, struct chunk *chunk, bool open);
void fake_unmap(struct range *range, struct mapping *mapping);

CUresult fake_no_context_or(CUresult result); /* INVALID_CONTEXT on a thread without one */

#endif
