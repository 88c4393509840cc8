/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a region for a thread that copies them: at an address, or, for imported host memory, behind a descriptor.
 *
 * The daemon never maps memory that a client imported. To map or unmap a file is to wait, with the lock of the daemon's address
 * space, for whoever changes mappings of the same file, which a client can do for seconds; the loop would wait with it at its
 * next page fault. So such memory is read by pread and written by pwrite. A read creates no pages: holes are zeros. Both wait
 * for locks of the file, which its client can hold, so only threads of owners (base/owner_work.h) call the functions here for
 * such memory.
 *
 * It refuses to write memory in huge pages, which the kernel writes only through a mapping.
 */
#ifndef DAEMON_IMPORTED_H
#define DAEMON_IMPORTED_H

#include "daemon/memory/region.h"

struct memory_place {
    uint8_t *base; /* NULL: by_fd, or there is no memory */
    bool by_fd;
    int fd;                         /* with by_fd: borrowed */
    uint64_t offset;                /* with by_fd: where the region begins in the file */
    pthread_mutex_t *writing;       /* with by_fd: of the region */
    _Atomic uint64_t created_bytes; /* with by_fd: pages that writes have created, and for which nobody has been charged yet */
};

/* Finds the bytes of a region, which must stay pinned as long as they are used. The errors of region_addr. Loop thread. */
enum rdt_status memory_place_of(struct region *region, struct memory_place *place_p, struct rdt_error *err);

/* Read and write `bytes` bytes at `at`, counted from the region's start. They return 0 or an errno. */
int memory_place_read(const struct memory_place *place, uint64_t at, uint64_t bytes, void *to);
int memory_place_write(struct memory_place *place, uint64_t at, uint64_t bytes, const void *from);

/* layout_gather and layout_scatter for the tensor of that place. They return 0 or an errno. */
int memory_place_gather(const struct memory_place *place, const struct layout *layout, uint32_t i, uint64_t from,
                        uint64_t bytes, void *packed_p);
int memory_place_scatter(struct memory_place *place, const struct layout *layout, uint32_t i, uint64_t from, uint64_t bytes,
                         const void *packed);

/* In the loop: charges the region of the place for the pages that writes have created. LIMIT, NO_MEMORY. */
enum rdt_status memory_place_charge(struct memory_place *place, struct region *region, struct rdt_error *err);

#endif
