/* SPDX-License-Identifier: Apache-2.0 */
/* What plugin.c (all backends), plugin_open.c (the instances of one) and plugin_change.c (loading and
 * unloading while the daemon runs) share. Private to plugin*.c. */
#ifndef DAEMON_PLUGIN_IMPL_H
#define DAEMON_PLUGIN_IMPL_H

#include "daemon/plugins/plugin.h"
#include "daemon/plugins/plugin_events.h"
#include "daemon/plugins/plugin_load.h"

struct plugin_change;

/* A transport's name. Objects and requests refer to it, even after the transport was unloaded. */
struct plugin_name {
    struct list link;
    char text[];
};

struct plugins {
    struct plugin_events events;
    struct list files; /* struct plugin.link */
    struct list memory_kinds, transports;
    struct list transport_names; /* struct plugin_name.link: of every transport that was ever loaded */
    /* NULL: no change is running. During a change only its thread reads files, and nobody changes the
     * lists. */
    struct plugin_change *change;
    bool closing;
    void (*on_closed)(void *arg);
    void *arg;
    pthread_t closer; /* the thread that closes the instances at the end; it queues `closed` */
    struct plugin_event closed;
};

/* ---- plugin.c ---- */

/* EXISTS: another backend has the name of this one or of a role of it. INVALID: a section of the
 * configuration has its name. */
enum rdt_status plugins_check_names(struct plugins *plugins, const struct plugin *plugin, struct rdt_error *err);

/* Called when a change has ended: closes everything if plugins_close was called meanwhile. */
void plugins_close_if_due(struct plugins *plugins);

/* Starts a thread for vendors' code, which may take any time. Only signals of its own faults reach the
 * thread. Returns 0 or an errno. */
int plugin_thread_start(pthread_t *thread_p, void *(*main)(void *arg), void *arg);

/* ---- plugin_open.c ---- */

/* Creates and opens the instances of a plug-in, and adds them to no list. Any thread. After an error
 * nothing of it is open. */
enum rdt_status plugin_open(struct plugins *plugins, struct plugin *plugin, const struct options *options,
                            struct plugin_roles *roles_p, struct rdt_error *err);

/* Add the plug-in and its roles to the lists, and remove them. */
void plugin_link(struct plugins *plugins, struct plugin_roles *roles);
void plugin_unlink(struct plugin_roles *roles);

/* plugin_close closes the transport before the memory kind, whose memory it may use. Any thread.
 * plugin_roles_free frees the instances, not the plug-in. */
void plugin_close(const struct plugin_roles *roles);
void plugin_roles_free(struct plugin_roles *roles);

#endif
