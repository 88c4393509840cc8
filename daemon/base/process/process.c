/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/process/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The beginning of a file of /proc/PID. false: it cannot be read. */
static bool read_proc(pid_t pid, const char *file, char *text_p, size_t size)
{
    char path[48];
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    n = read(fd, text_p, size - 1);
    (void)close(fd);
    text_p[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* The second field of stat, in brackets, may contain anything. */
static bool read_stat(pid_t pid, char *state_p, uint64_t *started_p)
{
    char text[1024], *at = NULL;
    unsigned long long started = 0;

    if (read_proc(pid, "stat", text, sizeof text))
        at = strrchr(text, ')');
    if (!at || sscanf(at, ") %c", state_p) != 1)
        return false;
    for (unsigned field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (!at || sscanf(at, "%llu", &started) != 1)
        return false;
    *started_p = started;
    return true;
}

uint64_t process_started(pid_t pid)
{
    uint64_t started;
    char state;

    return read_stat(pid, &state, &started) ? started : 0;
}

bool process_is_dying(pid_t pid, uint64_t started)
{
    char state, text[4096];
    uint64_t its_start;

    if (!read_stat(pid, &state, &its_start) || (started != 0 && started != its_start))
        return false;
    if (state == 'Z' || state == 'X') /* the state of the main thread, which ends first only when all are ending */
        return true;
    return read_proc(pid, "status", text, sizeof text) && strstr(text, "\nCoreDumping:\t1") != NULL;
}
