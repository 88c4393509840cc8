/* SPDX-License-Identifier: Apache-2.0 */
/* See fuzz.h. */
#include "tests/fuzz/harness/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

int fuzz_file(const void *bytes, size_t n)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    fuzz_must(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    return fd;
}

/* Without pipes: a sanitizer's are its symbolizer's. */
static unsigned count_fds(bool show)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++) {
        char link[64], name[256];
        ssize_t bytes;

        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        bytes = readlink(link, name, sizeof name - 1);
        if (bytes <= 0 || strncmp(name, "pipe:", 5) == 0)
            continue;
        n++;
        if (show)
            fprintf(stderr, "fd %d: %.*s\n", fd, (int)bytes, name);
    }
    return n;
}

/* To count takes longer than most runs: only when the lowest free number has grown, as it does with a leak once the gaps are
 * full. */
void fuzz_check_fds(unsigned *most)
{
    static int lowest = -1;
    int fd = dup(STDERR_FILENO);
    unsigned n;

    fuzz_must(fd >= 0);
    close(fd);
    if (*most > 0 && fd <= lowest)
        return;
    lowest = fd;
    n = count_fds(false);
    if (*most == 0)
        *most = n;
    if (n > *most)
        (void)count_fds(true);
    fuzz_must(n <= *most);
}
