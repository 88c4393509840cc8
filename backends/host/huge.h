/* Huge pages for the memory kind "host": a memfd of hugetlb pages where the system's pool has some, transparent ones where it gives
 * them on advice, and for what never leaves the daemon a tmpfs that was mounted with huge=always. What cannot be had is said once.
 */
#ifndef BACKENDS_HOST_HUGE_H
#define BACKENDS_HOST_HUGE_H

#include <stdatomic.h>

#include "backends/rdt_backend.h"

enum huge_mode { HUGE_NO, HUGE_TRY, HUGE_REQUIRE };

struct huge {
    enum huge_mode mode;
    uint64_t page_bytes; /* of hugetlb; 0: the system has none */
    bool advise;         /* shmem pages become huge on advice */
    char tmpfs[4096];    /* a folder on it; "": none */
    const struct rdt_host *host;
    atomic_flag told_pool, told_tmpfs;
};

/* Reads huge_pages and huge_tmpfs. INVALID: a value; UNSUPPORTED: huge pages are required, and the system has none at all. */
enum rdt_status huge_open(struct huge *huge, const struct rdt_host *host, struct rdt_error *err);

/* What so many bytes take. Less than a huge page is never rounded to one. */
uint64_t huge_round(const struct huge *huge, uint64_t bytes);

/* A memfd of huge pages, all of them reserved. -1 with RDT_OK: to be made of others; NO_MEMORY: they are required. */
enum rdt_status huge_memfd(struct huge *huge, uint64_t bytes, int *fd_p, struct rdt_error *err);

/* A file without a name on the tmpfs, its pages reserved; -1: none. It knows no seals. */
int huge_tmpfs(struct huge *huge, uint64_t bytes);

/* Maps the whole file, asks for transparent huge pages and touches all of it. NULL: that is not how it is done here. */
void *huge_map(const struct huge *huge, int fd, uint64_t bytes);

#endif
