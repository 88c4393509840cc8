/* What plugin.c (all of them), plugin_open.c (one instance of each) and plugin_change.c (loading and unloading while the daemon runs)
 * share. For plugin*.c only. */
#ifndef DAEMON_PLUGIN_IMPL_H
#define DAEMON_PLUGIN_IMPL_H

#include "daemon/plugins/plugin.h"
#include "daemon/plugins/plugin_events.h"
#include "daemon/plugins/plugin_load.h"

struct plugin_change;

/* A transport's name: objects and requests refer to it, also when it was unloaded and is loaded anew. */
struct plugin_name {
    struct list link;
    char text[];
};

struct plugins {
    struct plugin_events events;
    struct list files; /* of struct plugin */
    struct list memory_kinds, transports;
    struct list names;            /* of struct plugin_name: every transport's that there ever was */
    struct plugin_change *change; /* under way: meanwhile only its own thread looks at files, and nobody changes the lists */
    bool closing;
    void (*on_closed)(void *arg);
    void *arg;
    pthread_t closer; /* of what is open, at the end; `closed` tells that it has */
    struct plugin_event closed;
};

/* ---- plugin.c ---- */

/* EXISTS: another one has its name, or that of a part of it. INVALID: a section of the configuration has. */
enum rdt_status plugins_check_names(struct plugins *plugins, const struct plugin *plugin, struct rdt_error *err);

/* The change has ended. */
void plugins_close_if_due(struct plugins *plugins);

/* ---- plugin_change.c ---- */

/* For vendors' code, which may take as long as it likes; 0 or an errno. The thread gets no signals but those of its own faults. */
int plugin_thread_start(pthread_t *thread_p, void *(*main)(void *arg), void *arg);

/* ---- plugin_open.c ---- */

/* Makes and opens what the plug-in has; in no list yet. Any thread. On error nothing of it is open. */
enum rdt_status plugin_open(struct plugins *plugins, struct plugin *plugin, const struct options *options,
                            struct plugin_parts *parts_p, struct rdt_error *err);

/* Into the lists, the file too; out of them. */
void plugin_link(struct plugins *plugins, struct plugin_parts *parts);
void plugin_unlink(struct plugin_parts *parts);

/* Transport first: it may use memory that the kind owns. Any thread. _free: the structs, but not the file's. */
void plugin_close(const struct plugin_parts *parts);
void plugin_parts_free(struct plugin_parts *parts);

#endif
