/* SPDX-License-Identifier: Apache-2.0 */
/* The group tables of a few nodes in one process, without a network and without a clock. Messages wait in queues until the
 * test delivers them, a deadline passes when the test says so, and the transport is the fake one of this file. */
#ifndef TESTS_SUPPORT_GROUP_WORLD_H
#define TESTS_SUPPORT_GROUP_WORLD_H

#include "daemon/groups/group.h"

#define GW_NODES 3u
#define GW_RANKS 64u

struct gw_letter { /* on its way from one node to another */
    struct list link;
    unsigned from, to;
    uint16_t type;
    uint32_t bytes;
    uint8_t payload[];
};

struct gw_seen {               /* the calls that a group has made to transfers */
    const struct group *group; /* NULL: free */
    bool connected, open;
};

struct gw_rank { /* the fake transport's */
    struct plugin_group *ctx;
    struct gw_node *node;
    bool connecting, closing; /* the core waits for ready, for closed */
};

struct gw_node {
    struct gw_world *world;
    unsigned index;
    uv_loop_t loop;
    struct deadlines deadlines;
    struct options options;
    struct node node;
    struct accounts accounts;
    struct plugins *plugins;
    struct transport transport;
    struct groups groups;
    struct peer peers[GW_NODES]; /* the other nodes, as this one knows them; its own is not used */
    struct gw_rank *ranks[GW_RANKS];
    bool running, went; /* went: groups_close has ended */
    bool client_away;   /* its member is not connected */
    bool met[GW_NODES]; /* in this life */

    /* what the fake transport does */
    bool refuses_create, refuses_connect, hangs, never_closes;

    struct gw_seen seen[GW_RANKS];
};

struct gw_world {
    struct gw_node nodes[GW_NODES];
    struct list letters;
    bool linked[GW_NODES][GW_NODES];
    bool mute[GW_NODES][GW_NODES]; /* messages from one node to the other never arrive */
};

struct gw_waiter {
    struct group_waiter waiter;
    bool set, told; /* set: somebody waits, or has waited; told: on_done came */
    struct rdt_error err;
};

void gw_init(struct gw_world *world); /* all nodes run, and are linked */
void gw_fini(struct gw_world *world); /* ends what there is; nothing may be left */

/* ---- what happens ---- */

bool gw_deliver_one(struct gw_world *world, unsigned from, unsigned to); /* false: nothing is on its way there */
bool gw_vendor_one(struct gw_node *node);                                /* the transport's next step; false: it has none */
bool gw_turn(struct gw_node *node);     /* runs the loop for one deadline that is due; false: none is */
bool gw_pass_one(struct gw_node *node); /* the next of its deadlines passes; false: it has none */
void gw_quiet(struct gw_world *world);  /* all letters arrive and all transports do their work: no time passes */
void gw_settle(struct gw_world *world); /* and deadlines pass, so many that whatever ends by itself has */

void gw_cut(struct gw_world *world, unsigned a, unsigned b); /* the link is lost, with the messages in flight */
void gw_mend(struct gw_world *world, unsigned a, unsigned b);
void gw_dial(struct gw_world *world, unsigned a, unsigned b); /* not linked yet, and being dialled: before there is a group */
void gw_kill(struct gw_world *world, unsigned index);         /* all its links are lost, and what it knew */
void gw_restart(struct gw_world *world, unsigned index);      /* linked with all that run */
void gw_vendor_fails(struct gw_node *node, const char *why);

/* ---- the group "g" of the members c0, c1, c2, each on its node ---- */

extern const struct owner gw_owner;
enum rdt_status gw_create(struct gw_world *world, unsigned on, struct gw_waiter *waiter, struct group **group_p,
                          struct rdt_error *err);
void gw_end(struct group *group, struct gw_waiter *waiter);
void gw_leave(struct group *group, struct gw_waiter *waiter);
struct group *gw_group(struct gw_world *world, unsigned index); /* also one that ends; NULL: it has none */
const char *gw_state(struct gw_world *world, unsigned index);   /* "-": it has none */

/* "ready 2, ready 2, down 1": state and epoch on each node. */
void gw_describe(struct gw_world *world, char text_p[128]);

#endif
