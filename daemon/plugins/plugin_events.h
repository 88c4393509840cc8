/* From the threads of plug-ins to the loop. For plugin*.c only; what others use of plugin_events.c is in plugin.h. */
#ifndef DAEMON_PLUGIN_EVENTS_H
#define DAEMON_PLUGIN_EVENTS_H

#include <pthread.h>
#include <uv.h>

#include "backends/rdt_backend.h"
#include "daemon/base/list.h"
#include "daemon/base/wake.h"

struct plugin_event;
struct memory_kind;

struct plugin_events {
    struct wake wake;
    pthread_mutex_t mutex;
    /* Of struct plugin_event. Under the mutex, as are the members of conns and ops that foreign threads write. */
    struct list queue;
    bool woken;        /* the loop has been told to look */
    void (*on_closed)(struct plugin_events *);
    /* Loop thread. */
    unsigned copies; /* of memory kinds, under way */
    void (*on_copied)(void *arg); /* wants to hear when there is none any more */
    void *copied_arg;
};

enum rdt_status plugin_events_init(struct plugin_events *events, uv_loop_t *loop, struct rdt_error *err);

/* Any thread: event->deliver is called on the loop. */
void plugin_events_queue(struct plugin_events *events, struct plugin_event *event);

/* No thread reports any more. on_closed comes from the loop and may free the struct. */
void plugin_events_close(struct plugin_events *events, void (*on_closed)(struct plugin_events *));

/* Fills op_done, conn_failed, conn_closed, and what groups (plugin_group.c) and copies (plugin_memory.c) report. */
void plugin_events_host(struct rdt_host *host);
void plugin_group_host(struct rdt_host *host);
void plugin_memory_host(struct rdt_host *host);

/* plugin_memory.c: on_copied comes, now or later, when no copy runs. */
void plugin_copies_await(struct plugin_events *events, void (*on_copied)(void *arg), void *arg);

/* The same file: asks the kind, which is open, for its devices, of each of which so much may be used (0: nine tenths); and lets go of
 * what is known of them. */
enum rdt_status plugin_memory_devices(struct memory_kind *kind, uint64_t limit_bytes, uint64_t ready_max_bytes,
                                      struct rdt_error *err);
void plugin_memory_fini(struct memory_kind *kind);

struct plugin_event;

/* Under the mutex; the loop is woken. */
void plugin_events_add(struct plugin_events *events, struct plugin_event *event);

#endif
