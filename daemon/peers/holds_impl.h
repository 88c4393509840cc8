/* SPDX-License-Identifier: Apache-2.0 */
/* What holds.c and holds_restore.c, which takes over the holds of an earlier daemon, share. */
#ifndef DAEMON_HOLDS_IMPL_H
#define DAEMON_HOLDS_IMPL_H

#include "daemon/peers/holds.h"

/* limit for the holds of one node on objects of this node, and for those of this node there */
#define NODE_HOLDS_MAX (1u << 20)
#define HOLDS_BATCH 256u /* holds notified in one message */
#define LIST_HOLDS 4096u /* holds in one message of a list */

struct holds_node { /* what peer->holds points to */
    struct list link;
    struct holds *holds;
    struct peer *peer; /* NULL: the node has not come back since this daemon's start */
    uint8_t uuid[16];
    char name[65]; /* while peer is NULL */
    char address[65];

    /* holds of that node on objects of this node */
    struct map here;      /* number -> struct node_hold; also some of those in `stale` and `dropping` */
    struct list taken;    /* struct node_hold.by_node: all others are in one of the following lists */
    struct list unlisted; /* since that node has begun its latest list, it has not named them there */
    struct list unsorted; /* of the time before this daemon's start, until sort_some moves them to `unlisted` or `stale` */
    struct list stale;    /* of an earlier daemon of that node; dropped by `linger` */
    struct list dropping; /* they are dropped in slices */
    struct slice drop;
    bool returns;           /* that node's present daemon goes on with the sessions of the earlier one */
    bool list_ended;        /* that node has sent the end of its latest list: what is unlisted is dropped */
    struct slice sort;      /* while holds are unsorted */
    struct deadline linger; /* set while holds in `stale` may stay */
    struct deadline grace;  /* set while the link is down and the node has holds here */

    /* holds of this node's clients on objects of that node */
    struct map there; /* number -> struct far_hold */
    bool asked;       /* a HOLD call was sent, so the node may have holds that this node does not know */
    struct deadline notify;
    uint64_t unnotified[HOLDS_BATCH]; /* dropped holds of which the node has not been notified */
    size_t n_unnotified;
};

struct holds_node *holds_node_create(struct holds *holds, const uint8_t uuid[16]); /* NULL: no memory */

/* The node's grace has passed: drops its holds. */
void holds_give_up(struct holds_node *node);

/* The holds of that node from before this daemon's start; NULL: there are none, or the node has come back. */
struct holds_node *holds_awaited(struct holds *holds, const uint8_t uuid[16]);

void holds_dial(const struct holds_node *node);

#endif
