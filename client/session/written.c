/* SPDX-License-Identifier: Apache-2.0 */
#include "written.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PRESENT ((uint64_t)1 << 63)
#define SWAPPED ((uint64_t)1 << 62)
#define OF_FILE ((uint64_t)1 << 61)
#define AT_ONCE 2048u /* entries that are read by one call */
#define GAP_PAGES 16u /* pages between written ones that are dropped with them: a page fault maps as many again */

struct run { /* of pages, [first, end) */
    size_t first, end;
};

static bool drop(uint8_t *addr, const struct run *run, size_t page_bytes)
{
    return run->first == run->end ||
           madvise(addr + run->first * page_bytes, (run->end - run->first) * page_bytes, MADV_DONTNEED) == 0;
}

/* A page of the mapping that was written is a copy of the process's own, not one of the file. */
static bool drop_by(int pagemap, uint8_t *addr, size_t n_pages, size_t page_bytes)
{
    uint64_t entries[AT_ONCE], first = (uintptr_t)addr / page_bytes;
    struct run run = {0, 0};

    for (size_t at = 0; at < n_pages; at += AT_ONCE) {
        size_t n = n_pages - at < AT_ONCE ? n_pages - at : AT_ONCE;

        if (pread(pagemap, entries, n * sizeof entries[0], (off_t)((first + at) * sizeof entries[0])) !=
            (ssize_t)(n * sizeof entries[0]))
            return false;
        for (size_t i = 0; i < n; i++) {
            if (!(entries[i] & (PRESENT | SWAPPED)) || entries[i] & OF_FILE)
                continue;
            if (at + i - run.end > GAP_PAGES) {
                if (!drop(addr, &run, page_bytes))
                    return false;
                run.first = at + i;
            }
            run.end = at + i + 1;
        }
    }
    return drop(addr, &run, page_bytes);
}

bool written_drop(uint8_t *addr, size_t bytes)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    /* Opened each time, because after fork the descriptor would still be about the parent. */
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    bool dropped;

    if (pagemap < 0)
        return false;
    dropped = mprotect(addr, bytes, PROT_READ | PROT_WRITE) == 0 &&
              drop_by(pagemap, addr, (bytes + page_bytes - 1) / page_bytes, page_bytes);
    (void)close(pagemap);
    return dropped;
}
