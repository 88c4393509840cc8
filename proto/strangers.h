/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the connections that have not said who they are makes room for the next. Whoever reaches a port can open such
 * connections, and they must not keep out those that would say who they are.
 *
 *   accept --> strangers_admit --> says who it is, or ends: strangers_remove
 *                    |
 *                    +--> the oldest one of the same source, if that has max_of_source; else, if there are `max`, the
 *                         oldest one of the source that has most of them, where an exempt one counts half: the
 *                         caller closes it
 *
 * A connection that has what it needs says who it is within milliseconds, so the oldest is the one to go. A source that
 * fills the list makes room itself, whoever it is: a user of a known node can open connections, too. Not locked.
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

static inline unsigned strangers_of(const struct strangers *strangers, const uint8_t source[16])
{
    unsigned n = 0;

    for (const struct stranger *one = strangers->list.next; one != &strangers->list; one = one->next)
        n += memcmp(one->source, source, sizeof one->source) == 0;
    return n;
}

/* The oldest one of the source that has most, where those of an exempt one count half; among sources that have as many,
 * the oldest that is not exempt. */
static inline struct stranger *strangers_most(const struct strangers *strangers)
{
    struct stranger *found = NULL;
    unsigned most = 0;

    for (struct stranger *one = strangers->list.next; one != &strangers->list; one = one->next) {
        unsigned n = strangers_of(strangers, one->source) / (one->exempt ? 2 : 1);
        if (!found || n > most || (n == most && found->exempt && !one->exempt)) {
            most = n;
            found = one;
        }
    }
    return found;
}

/* Adds a connection whose source is set. exempt: its source has no limit of its own. Returns the connection that must be
 * closed, which has been removed from the list; NULL: there is room for all. */
static inline struct stranger *strangers_admit(struct strangers *strangers, struct stranger *stranger, bool exempt)
{
    struct stranger *evicted = NULL;

    if (!exempt && strangers_of(strangers, stranger->source) >= strangers->max_of_source) {
        evicted = strangers->list.next;
        while (memcmp(evicted->source, stranger->source, sizeof evicted->source) != 0)
            evicted = evicted->next;
    } else if (strangers->n >= strangers->max) {
        evicted = strangers_most(strangers);
    }
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
