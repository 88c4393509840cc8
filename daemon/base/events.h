/* SPDX-License-Identifier: Apache-2.0 */
/* Events: changes in the daemon's tables, reported to the clients that watch. A table calls event(), which
 * is a single test while nobody watches. What a client sees of an event is made in rpc/rpc_watch.c.
 *
 * Everything here runs on the loop thread. The events of one thing are in the order in which they
 * happened. */
#ifndef DAEMON_EVENTS_H
#define DAEMON_EVENTS_H

#include "rdt.pb-c.h"

struct events {
    unsigned watched; /* 1 << Rdt__Pb__ListKind of each kind that somebody watches */
    void (*emit)(void *arg, Rdt__Pb__ListKind kind, const char *what, const void *thing);
    void *arg;
};

/* `thing` is the struct of that table: object, region, client, peer, plugin_roles (with one role),
 * transfer_record, name, account, group. events NULL: nobody ever watches. */
static inline void event(const struct events *events, Rdt__Pb__ListKind kind, const char *what, const void *thing)
{
    if (events && events->watched & 1u << kind)
        events->emit(events->arg, kind, what, thing);
}

#endif
