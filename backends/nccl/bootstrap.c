/* SPDX-License-Identifier: Apache-2.0 */
/* See bootstrap.h. */
#include "backends/nccl/bootstrap.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_SEARCHED 4096 /* descriptors; each hundred takes a few microseconds */

int bootstrap_lowest_fd(void)
{
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);

    if (fd >= 0)
        (void)close(fd);
    return fd;
}

static bool is_bootstrap(int fd, const struct nccl_id *id)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address, length = sizeof(int);
    size_t compared;
    int listens = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) || !listens ||
        getsockname(fd, (struct sockaddr *)&address, &bytes))
        return false;
    if (address.ss_family == AF_INET)
        compared = offsetof(struct sockaddr_in, sin_zero);
    else if (address.ss_family == AF_INET6)
        compared = offsetof(struct sockaddr_in6, sin6_scope_id);
    else
        return false;
    return memmem(id->bytes, sizeof id->bytes, &address, compared);
}

int bootstrap_find(const struct nccl_id *id, int lowest)
{
    for (int fd = lowest; lowest >= 0 && fd < lowest + MAX_SEARCHED; fd++)
        if (is_bootstrap(fd, id))
            return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return -1;
}

void bootstrap_close(int fd, bool end)
{
    if (fd < 0)
        return;
    if (end)
        (void)shutdown(fd, SHUT_RDWR);
    (void)close(fd);
}
