/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the tensors of a snapshot into a memfd and seals it. */
#include "sealed_memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/std_fds.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* since Linux 6.3 */
#endif

#define PIECES 512u /* in one call of writev */

struct writing {
    int fd;
    uint64_t at; /* offset of the next piece */
    unsigned n;
    struct iovec pieces[PIECES];
};

static int create(void)
{
    int fd = memfd_create("rdt", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("rdt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return std_fds_avoid(fd);
}

static bool flush(struct writing *writing)
{
    struct iovec *next = writing->pieces, *end = next + writing->n;

    writing->n = 0;
    while (next < end) {
        ssize_t written = writev(writing->fd, next, (int)(end - next));
        size_t rest = written > 0 ? (size_t)written : 0;

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        while (next < end && rest >= next->iov_len)
            rest -= next++->iov_len;
        if (next < end) {
            next->iov_base = (uint8_t *)next->iov_base + rest;
            next->iov_len -= rest;
        }
    }
    return true;
}

static bool add(struct writing *writing, const void *data, uint64_t bytes)
{
    if (bytes == 0)
        return true;
    writing->pieces[writing->n++] = (struct iovec){.iov_base = (void *)data, .iov_len = bytes};
    writing->at += bytes;
    return writing->n < PIECES || flush(writing);
}

static bool write_all(struct writing *writing, const struct layout *layout, const enum rdt_memory *how)
{
    static const uint8_t zeros[LAYOUT_ALIGN_BYTES];

    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t bytes = how[i] == RDT_MEMORY_COPIED ? layout_bytes(layout, i) : 0;

        if (bytes == 0)
            continue;
        if (!add(writing, zeros, -writing->at % LAYOUT_ALIGN_BYTES) ||
            !add(writing, (const void *)(uintptr_t)layout->offset[i], bytes))
            return false;
    }
    return flush(writing);
}

bool sealed_may_write(uint64_t bytes)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur);
}

int sealed_memory(const struct layout *layout, const enum rdt_memory *how, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE),
             pages = (bytes + page - 1) / page * page; /* memory is shared in whole pages */
    struct writing writing;

    if (!sealed_may_write(pages))
        return -1;
    writing.fd = create();
    writing.at = 0;
    writing.n = 0;
    if (writing.fd < 0)
        return -1;
    if (write_all(&writing, layout, how) && ftruncate(writing.fd, (off_t)pages) == 0 &&
        fcntl(writing.fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return writing.fd;
    (void)close(writing.fd);
    return -1;
}
