/* Who this node is. */
#ifndef DAEMON_NODE_H
#define DAEMON_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "rdt_status.h"

#define RDTD_VERSION "0.1.0"

struct node {
    uint8_t uuid[16];    /* permanent: kept in state_dir */
    uint8_t boot_id[16]; /* new at each start */
    char address[65];    /* where peers reach us; "" without a peer link */
};

/* Reads or makes the uuid file in state_dir ("" : random), and a new boot id. */
enum rdt_status node_load(const char *state_dir, struct node *node_p, struct rdt_error *err);

/* Keeps state_dir for this process alone: two daemons of one uuid would be taken for one node. The lock ends with the process. EXISTS. */
enum rdt_status node_lock(const char *state_dir, struct rdt_error *err);

/* Does this node and address mean this node? A zero uuid is whoever is at the address, and without one the daemon that is asked. */
bool node_is_here(const struct node *node, const uint8_t uuid[16], const char *address);

/* 32 hex digits and a zero. */
void node_hex(const uint8_t uuid[16], char text_p[33]);

#endif
