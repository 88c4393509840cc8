/* Backends that come and go while the daemon serves: one change at a time.
 *
 *   IDLE ----load: file, open (on a thread)-----------------------------------> IDLE   offered to every node whose link is up
 *   IDLE --unload--> LEAVING --connections down--> FORGETTING --registrations gone--> CLOSING (on a thread) --> IDLE
 *
 * What is in use is not unloaded: the answer says who uses it. From LEAVING on nobody begins anything with it, and the way leads only
 * forward. Loop thread only.
 */
#ifndef DAEMON_LOADING_H
#define DAEMON_LOADING_H

#include "daemon/base/events.h"
#include "daemon/base/sm.h"
#include "daemon/transfers/transfer.h"

/* parts: of a load, what came. err NULL: it worked. */
typedef void (*loading_done)(void *arg, const struct plugin_parts *parts, const struct rdt_error *err);

struct loading {
    const struct events *events;
    const struct options *options;
    struct plugins *plugins;
    struct regions *regions;
    struct transfers *transfers;
    struct deadlines *deadlines;
    struct sm sm;
    char what[128]; /* "backend ucx is being unloaded" */
    uint64_t since_ns;
    struct plugin_parts parts; /* that leave */
    uint64_t cursor;           /* of regions */
    struct deadline tick;
    loading_done on_done; /* NULL: nobody waits for its end any more */
    void *arg;
};

void loading_init(struct loading *loading);

/* BUSY: another change is under way. Else as plugins_load, or later by on_done. */
enum rdt_status loading_load(struct loading *loading, const char *path, struct options_extra *take_settings,
                             loading_done on_done, void *arg, struct rdt_error *err);

/* NOT_FOUND; BUSY: another change, or who uses it; INVALID: host memory, which everything needs. */
enum rdt_status loading_unload(struct loading *loading, const char *name, loading_done on_done, void *arg,
                               struct rdt_error *err);

/* Whoever gave arg is gone; the change goes on. */
void loading_leave(struct loading *loading, const void *arg);

#endif
