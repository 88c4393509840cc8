/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the connections that have not said who they are makes room for the next. Whoever reaches a port can open such
 * connections, and they must not keep out those that would say who they are.
 *
 *   accept --> strangers_admit --> says who it is, or ends: strangers_remove
 *                    |
 *                    +--> the oldest one of the same source, if that has max_of_source, else the oldest of all, if there
 *                         are `max`: the caller closes it
 *
 * A connection that has what it needs says who it is within milliseconds, so the oldest is the one to go. Not locked.
 * The source of an IPv6 address is its network of 64 bits, which one host may have to itself.
 */
#ifndef PROTO_STRANGERS_H
#define PROTO_STRANGERS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

struct stranger {                 /* zeroed before its first use; embedded in the connection */
    struct stranger *next, *prev; /* NULL: not in a list */
    uint8_t source[16];
    bool exempt;
};

struct strangers {
    struct stranger list; /* oldest first */
    unsigned n, max, max_of_source;
};

static inline void strangers_init(struct strangers *strangers, unsigned max, unsigned max_of_source)
{
    *strangers = (struct strangers){.max = max, .max_of_source = max_of_source};
    strangers->list.next = strangers->list.prev = &strangers->list;
}

/* Computes the source of connections from that address. */
static inline void strangers_source(const struct sockaddr_storage *address, uint8_t source_p[16])
{
    const struct sockaddr_in *in4 = (const void *)address;
    const struct sockaddr_in6 *in6 = (const void *)address;

    memset(source_p, 0, 16);
    if (address->ss_family == AF_INET)
        memcpy(source_p + 12, &in4->sin_addr, 4);
    else if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
        memcpy(source_p + 12, in6->sin6_addr.s6_addr + 12, 4);
    else if (address->ss_family == AF_INET6)
        memcpy(source_p, &in6->sin6_addr, 8);
}

/* Does nothing if it is in no list. */
static inline void strangers_remove(struct strangers *strangers, struct stranger *stranger)
{
    if (!stranger->next)
        return;
    stranger->next->prev = stranger->prev;
    stranger->prev->next = stranger->next;
    stranger->next = stranger->prev = NULL;
    strangers->n--;
}

/* Adds a connection whose source is set. exempt: its source has no limit, and it is the last to make room
 * for others. Returns the connection that must be closed, which has been removed from the list; NULL:
 * there is room for all. */
static inline struct stranger *strangers_admit(struct strangers *strangers, struct stranger *stranger, bool exempt)
{
    struct stranger *of_source = NULL, *oldest = NULL, *evicted = NULL;
    unsigned n_of_source = 0;

    for (struct stranger *one = strangers->list.next; one != &strangers->list; one = one->next) {
        if (!oldest || (oldest->exempt && !one->exempt))
            oldest = one;
        if (memcmp(one->source, stranger->source, sizeof one->source) != 0)
            continue;
        n_of_source++;
        of_source = of_source ? of_source : one;
    }
    if (!exempt && n_of_source >= strangers->max_of_source)
        evicted = of_source;
    else if (strangers->n >= strangers->max)
        evicted = oldest;
    if (evicted)
        strangers_remove(strangers, evicted);
    stranger->exempt = exempt;
    stranger->next = &strangers->list;
    stranger->prev = strangers->list.prev;
    strangers->list.prev->next = stranger;
    strangers->list.prev = stranger;
    strangers->n++;
    return evicted;
}

#endif
