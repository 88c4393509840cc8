/* SPDX-License-Identifier: Apache-2.0 */
/* Huge pages for the memory kind "host", from three sources: a memfd of hugetlb pages while the system's pool has some;
 * transparent huge pages where the kernel makes them on advice (madvise); and, for memory that never leaves the daemon, a
 * tmpfs mounted with huge=always. Each kind of shortage is logged once. All functions may be called from any thread.
 */
#ifndef BACKENDS_HOST_HUGE_H
#define BACKENDS_HOST_HUGE_H

#include <stdatomic.h>

#include "backends/rdt_backend.h"

enum huge_mode { HUGE_NO, HUGE_TRY, HUGE_REQUIRE };

struct huge {
    enum huge_mode mode;
    uint64_t page_bytes; /* size of a hugetlb page; 0: the system has none, or the mode is HUGE_NO */
    bool advise;         /* the kernel makes pages of memfds huge on advice */
    char tmpfs[4096];    /* a folder on the tmpfs; "": there is none */
    const struct rdt_host *host;
    atomic_flag logged_pool, logged_tmpfs; /* the shortage has been logged */
};

/* Reads the keys huge_pages and huge_tmpfs; host is borrowed. INVALID: a value is malformed, or huge_tmpfs is not on a
 * tmpfs. SYSTEM: huge_tmpfs cannot be examined. UNSUPPORTED: huge pages are required, and the system has no hugetlb. */
enum rdt_status huge_open(struct huge *huge, const struct rdt_host *host, struct rdt_error *err);

/* Returns how many bytes an allocation of `bytes` takes: whole huge pages, from one huge page on. */
uint64_t huge_round(const struct huge *huge, uint64_t bytes);

/* Creates a memfd of huge pages, all of them reserved; the caller owns *fd_p. RDT_OK with *fd_p = -1: there are none for
 * this size, and the caller uses other pages. NO_MEMORY: there are none, and huge pages are required. */
enum rdt_status huge_memfd(struct huge *huge, uint64_t bytes, int *fd_p, struct rdt_error *err);

/* Creates an unnamed file on the tmpfs, with its pages reserved, and returns its fd, which the caller owns. Returns -1 if
 * there is no tmpfs or no room on it. Such a file cannot be sealed. */
int huge_tmpfs(struct huge *huge, uint64_t bytes);

/* Maps the whole file, asks for transparent huge pages and touches every page. NULL: the kernel does not make huge pages
 * on advice, or the file is too small for one, or the system refuses; the caller then reserves ordinary pages. */
void *huge_map(const struct huge *huge, int fd, uint64_t bytes);

#endif
