/* SPDX-License-Identifier: Apache-2.0 */
/* A few struct peers in one process, each with a loop of its own that the test runs, so that one can stand still while
 * others go on. The cable between two can be cut. */
#ifndef TESTS_SUPPORT_PEER_WORLD_H
#define TESTS_SUPPORT_PEER_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/node.h"
#include "daemon/config/options.h"
#include "daemon/peers/peer.h"

#define WORLD_NODES 3
#define WORLD_CABLES 16

struct world_node {
    uv_loop_t loop;
    struct options options;
    struct node node;
    struct node_entry entries[2];
    char listen[65];
    struct peers *peers; /* NULL: not running */
    struct owner_work *owner_work;
    struct slices *slices; /* NULL: node tables are taken over at once */
    bool frozen;           /* its loop does not run */

    /* What the callbacks received. */
    unsigned n_up, n_down, n_failed, n_boot_changed, n_frames;
    struct peer *peer;    /* of the last callback */
    struct rdt_error why; /* of the last on_down */
    char hello_address[65], hello_version[32];
    uint64_t frame_bytes, last_number;
    bool in_order;
    enum rdt_status answer; /* of on_message */
    bool closed;
};

/* A listening socket whose connections lead on to a node. */
struct world_cable {
    int listener;
    uint16_t port;
    char address[65], target[65];
    bool deaf; /* carries only what the far end says */
    struct {
        int ends[2];
        bool dead;
    } wires[WORLD_CABLES];
    unsigned n_wires;
};

struct world {
    char dir[32], key_path[64];
    struct world_node nodes[WORLD_NODES];
    struct world_cable cable;
    unsigned seed; /* not 0: loops turn in a random order, some not at all */
};

/* The key, and nodes that are not started: uuid is all 0x11, 0x22, 0x33; short timeouts. */
void world_init(struct world *world);
void world_fini(struct world *world); /* stops what runs; every loop must be empty then */

void world_write_key(struct world *world, const char *name, const char *text);

/* Adds a line to the nodes file; uuid NULL: none in it. */
void world_list(struct world_node *node, unsigned i, const char *name, const char *address, const uint8_t *uuid);

void world_start(struct world_node *node); /* a new boot id */
void world_stop(struct world *world, struct world_node *node);

struct peer *world_find(struct world_node *from, const struct world_node *to); /* by a ref of it */
unsigned world_count(struct world_node *node);                                 /* peers that it knows */

/* A port of 127.0.0.1 that nobody listens at now: "127.0.0.1:PORT". */
void world_free_address(char address_p[65]);

void world_lay_cable(struct world *world, const char *target);
void world_cut_cable(struct world *world);   /* connections so far carry nothing more; new ones work */
void world_close_wires(struct world *world); /* as when the process at the other end is killed */

/* Turns every loop once, waiting a moment if there is nothing to do. */
void world_turn(struct world *world);

/* A payload of `bytes` whose first number is checked for order. */
enum rdt_status world_send(struct world_node *node, uint64_t number, size_t bytes, struct rdt_error *err);

#define WORLD_PATIENCE_NS UINT64_C(20000000000)

#define world_until(world, condition)                                                \
    do {                                                                             \
        uint64_t world_deadline = uv_hrtime() + WORLD_PATIENCE_NS;                   \
        while (!(condition)) {                                                       \
            cr_assert_lt(uv_hrtime(), world_deadline, "never came: %s", #condition); \
            world_turn(world);                                                       \
        }                                                                            \
    } while (0)

#endif
