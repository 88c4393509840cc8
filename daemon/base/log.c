/* SPDX-License-Identifier: Apache-2.0 */
/* The log. Text from others cannot break a line or imitate one: control characters and those that change
 * the direction of text are replaced by '?'. */
#include "daemon/base/log.h"
#include "proto/plain_text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048

_Atomic enum log_level log_threshold = LOG_LEVEL_INFO;

/* priority: the level's number for syslog and journald. */
static const struct {
    const char *name;
    int priority;
} levels[] = {
    [LOG_LEVEL_ERROR] = {"error", 3}, [LOG_LEVEL_WARN] = {"warn", 4},   [LOG_LEVEL_INFO] = {"info", 6},
    [LOG_LEVEL_DEBUG] = {"debug", 7}, [LOG_LEVEL_TRACE] = {"trace", 7},
};

bool log_level_parse(const char *text, enum log_level *level_p)
{
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcmp(text, levels[i].name) == 0) {
            *level_p = (enum log_level)i;
            return true;
        }
    }
    return false;
}

const char *log_level_name(enum log_level level)
{
    return levels[level].name;
}

/* The variable stays set when stderr is redirected, so it counts only if it names the file that stderr is. */
static bool to_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    uintmax_t device, inode;
    struct stat st;
    return stream && sscanf(stream, "%ju:%ju", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device &&
           st.st_ino == inode;
}

static size_t print_head(enum log_level level, char *line_p, size_t size)
{
    if (to_journal())
        return (size_t)snprintf(line_p, size, "<%d>", levels[level].priority);
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line_p, size, "%Y-%m-%dT%H:%M:%S", &utc);
    return used + (size_t)snprintf(line_p + used, size - used, ".%03ldZ %s: ", now.tv_nsec / 1000000, levels[level].name);
}

void log_write(enum log_level level, const char *fmt, ...)
{
    int saved_errno = errno;
    char line[LINE_BYTES];
    size_t head = print_head(level, line, sizeof line);
    size_t room = sizeof line - head - 1; /* without the newline */

    va_list args;
    va_start(args, fmt);
    errno = saved_errno; /* for %m */
    int wanted = vsnprintf(line + head, room, fmt, args);
    va_end(args);

    size_t used = wanted < 0 ? 0 : (size_t)wanted;
    if (used >= room) {
        used = room - 1;
        memcpy(line + head + used - 3, "...", 3);
    }
    text_clean(line + head, used);
    line[head + used] = '\n';

    /* A single write, so that lines of several threads and processes do not mix. If the log cannot be
     * written, there is nobody to tell. */
    ssize_t written;
    do {
        written = write(STDERR_FILENO, line, head + used + 1);
    } while (written < 0 && errno == EINTR);
    errno = saved_errno;
}

void log_rarely(enum log_level level, struct log_rare *rare, const char *who, const char *text)
{
    struct timespec time;
    uint64_t now;
    unsigned suppressed = rare->suppressed;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    if (rare->last_ns && now - rare->last_ns < rare->every_ns) {
        rare->suppressed++;
        log_debug("%s: %s", who, text);
        return;
    }
    rare->last_ns = now;
    rare->suppressed = 0;
    if (suppressed)
        log_at(level, "%s: %s (and %u more like it)", who, text, suppressed);
    else
        log_at(level, "%s: %s", who, text);
}

void log_fatal(const char *text)
{
    fprintf(stderr, "%srdtd: %s\n", to_journal() ? "<3>" : "", text);
}
