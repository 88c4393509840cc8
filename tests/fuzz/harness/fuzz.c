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
