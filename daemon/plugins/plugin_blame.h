/* SPDX-License-Identifier: Apache-2.0 */
/* Which plug-ins have crashed the daemon. When a fatal signal ends the process, the handler looks whose code ran: it walks the
 * stack from where the signal struck, up to the first function of a plug-in or of a library that was loaded with one. The
 * plug-in's record is in a file of state_dir that is mapped shared, so it is there when the next daemon starts. A record
 * belongs to one build of a file: another build, or none, starts without one.
 *
 * Refuses: to guess. What has overflowed its stack, called exit or was killed by another process is nobody's crash. */
#ifndef DAEMON_PLUGIN_BLAME_H
#define DAEMON_PLUGIN_BLAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"

struct plugin_crashes {
    const char *path; /* of the plug-in's file; valid for good */
    uint64_t count;
    int64_t last_s; /* since 1970 */
    int signal;     /* of the last one */
    bool opening;   /* it struck while the plug-in was loaded or opened */
};

/* Reads the records and installs the handler, unless another one is there. Before any plug-in is loaded, and before other
 * handlers that pass signals on. After an error nothing is recorded. */
enum rdt_status plugin_blame_start(const char *state_dir, struct rdt_error *err);

/* Iterates over the plug-ins that have crashed the daemon. *cursor starts at 0. Any thread. */
bool plugin_blame_next(size_t *cursor, struct plugin_crashes *crashes_p);
bool plugin_blame_find(const char *path, struct plugin_crashes *crashes_p);

/* "it has crashed the daemon 2 times, last on 2026-11-26 21:30:05 UTC by \"Segmentation fault\", when it was opened" */
void plugin_blame_describe(const struct plugin_crashes *crashes, char *text_p, size_t size);

/* For the room: around the loading and opening of a file, by the one thread that does so. */
void plugin_blame_begin(const char *path);
void plugin_blame_end(void);

#endif
