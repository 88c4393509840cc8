/* Huge pages for the memory kind "host": a memfd of hugetlb pages where the system's pool has some,
 * transparent ones where it gives them on advice, and a tmpfs mounted with huge=always for memory that never
 * leaves the daemon. A shortage is logged once.
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

/* Reads huge_pages and huge_tmpfs. INVALID: a value; UNSUPPORTED: huge pages are required, and the system has
 * none at all. */
enum rdt_status huge_open(struct huge *huge, const struct rdt_host *host, struct rdt_error *err);

/* Returns how many bytes an allocation of `bytes` takes. Less than one huge page is not rounded up to one. */
uint64_t huge_round(const struct huge *huge, uint64_t bytes);

/* Creates a memfd of huge pages, all of them reserved; the caller owns *fd_p. With RDT_OK and *fd_p = -1 the
 * caller uses other pages. NO_MEMORY: huge pages are required. */
enum rdt_status huge_memfd(struct huge *huge, uint64_t bytes, int *fd_p, struct rdt_error *err);

/* Creates an unnamed file on the tmpfs with its pages reserved, and returns its fd, or -1. Such a file cannot
 * be sealed. */
int huge_tmpfs(struct huge *huge, uint64_t bytes);

/* Maps the whole file, asks for transparent huge pages and touches every page. NULL: pages are not made huge
 * on advice here. */
void *huge_map(const struct huge *huge, int fd, uint64_t bytes);

#endif
