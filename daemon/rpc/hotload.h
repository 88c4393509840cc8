/* SPDX-License-Identifier: Apache-2.0 */
/* Backend hot-load: loads and unloads plug-ins while the daemon serves. One change runs at a time.
 *
 *   IDLE ----load--> LOADING (the file is opened on a thread) ------> IDLE   every node whose link is up gets an offer
 *   IDLE --unload--> LEAVING --connections closed--> FORGETTING --registrations gone--> CLOSING (on a thread) --> IDLE
 *
 * Transports that found no network at the daemon's start, as at boot, are opened again when the machine has it.
 *
 * A backend that is in use is not unloaded: the error names its user. From LEAVING on, nothing new starts to use the
 * backend, and the unload cannot be undone. All functions and callbacks run on the loop thread.
 */
#ifndef DAEMON_HOTLOAD_H
#define DAEMON_HOTLOAD_H

#include "daemon/base/events.h"
#include "daemon/base/owner_work.h"
#include "daemon/base/sm.h"
#include "daemon/transfers/transfer.h"

/* err is NULL on success. roles: what a load added, borrowed; NULL after an unload. */
typedef void (*hotload_done)(void *arg, const struct plugin_roles *roles, const struct rdt_error *err);

struct hotload {
    const struct events *events;
    const struct options *options;
    struct plugins *plugins;
    struct regions *regions;
    struct transfers *transfers;
    struct deadlines *deadlines;
    struct sm sm;
    char what[128]; /* "backend ucx is being unloaded" */
    uint64_t since_ns;
    struct plugin_roles roles; /* of the backend that is being unloaded */
    uint64_t cursor;           /* FORGETTING: the next region to visit */
    uint64_t pin_cursor;       /* the same for memory that is pinned for the kind */
    struct deadline tick;
    hotload_done on_done; /* NULL: nobody waits for the end of the load or unload */
    void *arg;
    struct late_network {
        struct owner_work *owner_work;
        struct work look;
        struct deadline again;
        bool away;
        char what[256];
        unsigned n_passed; /* transports that were tried, and are not available all the same */
    } late;
};

void hotload_init(struct hotload *hotload);

/* When the daemon serves and found a part of its network missing: looks each second. */
void hotload_await_network(struct hotload *hotload, struct owner_work *owner_work);

/* Starts loading the plug-in file `path` with the settings, which are taken in any case. If it returns RDT_OK, on_done(arg)
 * runs once, later, unless hotload_cancel_wait(arg) is called first. Errors: BUSY (another backend is being loaded or
 * unloaded), and those of plugins_load. */
enum rdt_status hotload_load(struct hotload *hotload, const char *path, struct options_extra *take_settings,
                             hotload_done on_done, void *arg, struct rdt_error *err);

/* Starts unloading the backend `name`; on_done runs as above. Errors: NOT_FOUND; BUSY: another backend is being loaded or
 * unloaded, or this one is in use; INVALID: host memory cannot be unloaded. */
enum rdt_status hotload_unload(struct hotload *hotload, const char *name, hotload_done on_done, void *arg,
                               struct rdt_error *err);

/* Cancels the wait that was started with `arg`: on_done does not run. The load or unload itself continues. */
void hotload_cancel_wait(struct hotload *hotload, const void *arg);

#endif
