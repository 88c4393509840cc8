/* What happens in the daemon's tables, told to whoever watches. The tables say it by event(); while nobody watches that is one test.
 * Who watches, and what a row looks like, is above (rpc_watch.c).
 *
 * Loop thread only. Of one thing the events come in the order in which they happened.
 */
#ifndef DAEMON_EVENTS_H
#define DAEMON_EVENTS_H

#include "rdt.pb-c.h"

struct events {
    unsigned watched; /* set of 1 << Rdt__Pb__ListKind that somebody watches */
    void (*emit)(void *arg, Rdt__Pb__ListKind kind, const char *what, const void *thing);
    void *arg;
};

/* `thing` is the struct of that table: object, region, client, peer, plugin_parts (with one part), transfer_record, name, account,
 * group. events NULL: nobody ever watches. */
static inline void event(const struct events *events, Rdt__Pb__ListKind kind, const char *what, const void *thing)
{
    if (events && events->watched & 1u << kind)
        events->emit(events->arg, kind, what, thing);
}

#endif
