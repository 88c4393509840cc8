/* SPDX-License-Identifier: Apache-2.0 */
/* Talks to the service manager. Variables that name another process are ignored. */
#include "daemon/base/sdnotify.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3

static char *fd_names; /* a copy of LISTEN_FDNAMES, with ':' replaced by 0 */
static int n_fd_names;

void sdnotify(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof to.sun_path)
        return;
    size_t path_bytes = strlen(path);
    memcpy(to.sun_path, path, path_bytes);
    if (path[0] == '@')
        to.sun_path[0] = 0;
    /* an abstract name has no terminating 0: its length counts */
    socklen_t to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_bytes + (path[0] == '@' ? 0 : 1));

    char text[512];
    va_list args;
    va_start(args, fmt);
    int wanted = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (wanted <= 0)
        return;
    size_t text_bytes = (size_t)wanted < sizeof text ? (size_t)wanted : sizeof text - 1;

    /* The socket stays open: before Linux 6.9 closing a Unix socket collects descriptors in flight that
     * nobody can receive, and closes them in this thread. */
    static int fd = -1;
    if (fd < 0)
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    /* a manager that does not read must not block the loop */
    (void)sendto(fd, text, text_bytes, MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&to, to_bytes);
}

/* Parses a whole decimal number. false: the text is none. */
static bool number(const char *text, uint64_t *value_p)
{
    if (!text || text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0)
        return false;
    *value_p = value;
    return true;
}

uint64_t sdnotify_watchdog_ns(void)
{
    uint64_t usec, pid;
    const char *pid_text = getenv("WATCHDOG_PID");
    if (!number(getenv("WATCHDOG_USEC"), &usec) || usec > UINT64_MAX / 1000)
        return 0;
    if (pid_text && (!number(pid_text, &pid) || pid != (uint64_t)getpid()))
        return 0;
    return usec * 1000 / 2;
}

static void read_fd_names(const char *text)
{
    free(fd_names);
    fd_names = text ? strdup(text) : NULL;
    n_fd_names = fd_names ? 1 : 0;
    for (char *p = fd_names; p && *p != 0; p++) {
        if (*p == ':') {
            *p = 0;
            n_fd_names++;
        }
    }
}

int sdnotify_listen_fds(void)
{
    uint64_t pid, n = 0;
    int n_fds = 0;
    if (number(getenv("LISTEN_PID"), &pid) && pid == (uint64_t)getpid() && number(getenv("LISTEN_FDS"), &n) &&
        n <= INT_MAX - FIRST_FD) {
        /* Stops at the first number that is not open: with a wrong count the daemon would serve or close
         * other files. */
        while (n_fds < (int)n && fcntl(FIRST_FD + n_fds, F_SETFD, FD_CLOEXEC) == 0)
            n_fds++;
        read_fd_names(getenv("LISTEN_FDNAMES"));
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return n_fds;
}

const char *sdnotify_fd_name(int i)
{
    if (i < 0 || i >= n_fd_names)
        return "";
    const char *name = fd_names;
    for (; i > 0; i--)
        name += strlen(name) + 1;
    return name;
}
