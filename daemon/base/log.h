/* The daemon's log: one line per event, lower case, to stderr (journald adds time and priority when $JOURNAL_STREAM is set; else
 * we print the time). A failure is logged once, where it stops travelling. Any thread. */
#ifndef DAEMON_LOG_H
#define DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVEL_TRACE };

extern enum log_level log_threshold; /* set once by main */

/* "error", "warn", ...; false: no such level. */
bool log_level_parse(const char *text, enum log_level *level_p);
const char *log_level_name(enum log_level level);

void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_at(level, ...) ((level) <= log_threshold ? log_write((level), __VA_ARGS__) : (void)0)
#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__) /* someone must act */
#define log_warn(...) log_at(LOG_LEVEL_WARN, __VA_ARGS__)   /* degraded */
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)   /* lifecycle */
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__) /* per object */
#define log_trace(...) log_at(LOG_LEVEL_TRACE, __VA_ARGS__) /* per message */

/* Why the process ends, before the log is in use: "rdtd: text", at the priority of an error where systemd reads it. */
void log_fatal(const char *text);

/* For what users and strangers can cause at will: one warning in a while, the rest at debug. Zeroed but for every_ns. */
struct log_rare {
    uint64_t every_ns, said_ns;
    unsigned unsaid; /* since then */
};

/* "who: text", and how many were not said since the last one. One thread at a time. */
void log_warn_rarely(struct log_rare *rare, const char *who, const char *text);

#endif
