/* SPDX-License-Identifier: Apache-2.0 */
/* The log. A line that standard error does not take at once is dropped and counted: whoever reads it may have stopped, and
 * neither the loop nor a plug-in's thread waits for that. Text from others cannot break a line or imitate one: control
 * characters and those that change the direction of text are replaced by '?'. */
#include "daemon/base/log.h"
#include "proto/plain_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* ---- writing ---- */

#define FATAL_WAIT_MS 1000 /* before the process ends, its last lines wait so long for room, all together */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t untold; /* lines dropped since the log last took one */
static bool torn;       /* it has taken a part of a line only */
static _Atomic uint64_t n_dropped;

uint64_t log_lines_dropped(void)
{
    return n_dropped;
}

/* O_NONBLOCK belongs to the open file, which standard error shares with other processes, such as the shell of a terminal. So
 * this process opens the same pipe or terminal once more. -1: it may not, since the file belongs to another user, or there is
 * no /proc. */
static int own_stderr(const struct stat *st)
{
    static dev_t device;
    static ino_t inode;
    static int fd = -1;
    static bool tried;

    if (!tried || device != st->st_dev || inode != st->st_ino) {
        if (fd >= 0)
            (void)close(fd);
        fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        device = st->st_dev;
        inode = st->st_ino;
        tried = true;
    }
    return fd;
}

static bool has_room(int wait_ms)
{
    struct pollfd poll_fd = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&poll_fd, 1, wait_ms) > 0 && (poll_fd.revents & POLLOUT);
}

/* As write, but returns -1 with EAGAIN instead of waiting. A regular file has no room to wait for. */
static ssize_t write_now(const char *text, size_t bytes)
{
    struct stat st;
    int fd = STDERR_FILENO;

    if (fstat(STDERR_FILENO, &st) != 0)
        return -1;
    if (S_ISSOCK(st.st_mode))
        return send(STDERR_FILENO, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) {
        fd = own_stderr(&st);
        if (fd < 0 && !has_room(0)) {
            errno = EAGAIN;
            return -1;
        }
        if (fd < 0)
            fd = STDERR_FILENO; /* a pipe with room for a page takes a line, unless another process is first to fill it */
    }
    return write(fd, text, bytes);
}

/* A single write, so that lines of several threads and processes do not mix. False: the line is dropped, because nobody reads,
 * or because the disk is full. */
static bool write_line(const char *line, size_t bytes)
{
    ssize_t written;

    if (torn && write_now("\n", 1) != 1)
        return false;
    torn = false;
    do {
        written = write_now(line, bytes);
    } while (written < 0 && errno == EINTR);
    torn = written > 0 && (size_t)written < bytes;
    return written == (ssize_t)bytes;
}

/* Tells first how many lines are missing. */
static void put_line(const char *line, size_t bytes, bool waits)
{
    static int wait_ms = FATAL_WAIT_MS;
    char note[160];
    bool taken = true;

    (void)pthread_mutex_lock(&lock);
    if (waits && !has_room(wait_ms))
        wait_ms = 0;
    if (untold > 0) {
        size_t head = print_head(LOG_LEVEL_WARN, note, sizeof note);
        int length = snprintf(note + head, sizeof note - head,
                              "%" PRIu64 " lines of the log are missing here: standard error did not take them\n", untold);
        taken = write_line(note, head + (size_t)length);
        if (taken)
            untold = 0;
    }
    if (!taken || !write_line(line, bytes)) {
        untold++;
        n_dropped++;
    }
    (void)pthread_mutex_unlock(&lock);
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

    put_line(line, head + used + 1, false);
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

void log_fatal(const char *fmt, ...)
{
    char line[LINE_BYTES];
    size_t head = (size_t)snprintf(line, sizeof line, "%s%.64s: ", to_journal() ? "<3>" : "", program_invocation_short_name);
    size_t room = sizeof line - head - 1, bytes;
    va_list args;
    int wanted;

    va_start(args, fmt);
    wanted = vsnprintf(line + head, room, fmt, args);
    va_end(args);
    bytes = head + (wanted < 0 ? 0 : (size_t)wanted < room ? (size_t)wanted : room - 1);
    line[bytes++] = '\n';
    put_line(line, bytes, true);
}
