/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's log: one line per event, in lower case, to stderr. With $JOURNAL_STREAM journald adds time
 * and priority; otherwise the line begins with the time. A failure is logged once, where it is handled.
 * Any thread may log, and none waits for whoever reads the log. */
#ifndef DAEMON_LOG_H
#define DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVEL_TRACE };

extern _Atomic enum log_level log_threshold; /* from the options, and from LOG_LEVEL (rpc/rpc_manage.c) */

/* text is "error", "warn" and so on. false: no such level. */
bool log_level_parse(const char *text, enum log_level *level_p);
const char *log_level_name(enum log_level level);

void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_at(level, ...) ((level) <= log_threshold ? log_write((level), __VA_ARGS__) : (void)0)
#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__) /* someone must act */
#define log_warn(...) log_at(LOG_LEVEL_WARN, __VA_ARGS__)   /* degraded */
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)   /* lifecycle */
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__) /* per object */
#define log_trace(...) log_at(LOG_LEVEL_TRACE, __VA_ARGS__) /* per message */

/* Lines that standard error did not take: nobody read it, or the disk was full. The next line that it takes follows one that
 * says how many are missing. */
uint64_t log_lines_dropped(void);

/* Prints why the process ends, after the name of the program and with the priority of an error for journald. All calls together
 * wait at most a second for room. */
void log_fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For lines that users or strangers can cause at will: at most one for each every_ns, the others at
 * debug level. All fields but every_ns start as 0. */
struct log_rare {
    uint64_t every_ns, last_ns;
    unsigned suppressed; /* since last_ns */
};

/* Logs "who: text", with the number of lines suppressed since the last one. Not thread-safe for one struct. */
void log_rarely(enum log_level level, struct log_rare *rare, const char *who, const char *text);

static inline void log_warn_rarely(struct log_rare *rare, const char *who, const char *text)
{
    log_rarely(LOG_LEVEL_WARN, rare, who, text);
}

#endif
