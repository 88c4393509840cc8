/* SPDX-License-Identifier: Apache-2.0 */
/* The way from the threads of plug-ins to the loop. Private to plugin*.c. */
#ifndef DAEMON_PLUGIN_EVENTS_H
#define DAEMON_PLUGIN_EVENTS_H

#include <pthread.h>
#include <uv.h>

#include "backends/rdt_backend.h"
#include "daemon/base/wake.h"
#include "proto/list.h"

struct plugin_event;
struct memory_kind;

struct plugin_events {
    struct wake wake;
    pthread_mutex_t mutex;
    /* struct plugin_event.link. Under the mutex, as are the fields of connections and operations that
     * other threads write. */
    struct list queue;
    bool woken; /* the loop has been woken and will read the queue */
    void (*on_closed)(struct plugin_events *);
    /* Loop thread. */
    unsigned copies;              /* running copies of memory kinds */
    void (*on_copied)(void *arg); /* called when none is running; NULL: nobody waits */
    void *copied_arg;
};

enum rdt_status plugin_events_init(struct plugin_events *events, uv_loop_t *loop, struct rdt_error *err);

/* Any thread. event->deliver will be called on the loop. */
void plugin_events_queue(struct plugin_events *events, struct plugin_event *event);

/* No thread may report any more. on_closed is called from the loop and may free the struct. */
void plugin_events_close(struct plugin_events *events, void (*on_closed)(struct plugin_events *));

/* Fill in the entries of the host table: operations and connections; groups; copies. */
void plugin_events_host(struct rdt_host *host);
void plugin_group_host(struct rdt_host *host);
void plugin_memory_host(struct rdt_host *host);

/* In plugin_memory.c. Calls on_copied, now or later, when no copy is running. */
void plugin_copies_await(struct plugin_events *events, void (*on_copied)(void *arg), void *arg);

/* In plugin_memory.c. Lists the devices of an open kind; limit_bytes is the limit for each of them, 0 for
 * nine tenths of its memory. plugin_memory_fini frees the list. */
enum rdt_status plugin_memory_devices(struct memory_kind *kind, uint64_t limit_bytes, uint64_t ready_max_bytes,
                                      struct rdt_error *err);
void plugin_memory_fini(struct memory_kind *kind);

struct plugin_event;

/* Under the mutex. Wakes the loop. */
void plugin_events_add(struct plugin_events *events, struct plugin_event *event);

#endif
