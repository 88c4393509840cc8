/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of this node. */
#ifndef DAEMON_NODE_H
#define DAEMON_NODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "rdt_status.h"

#define RDTD_VERSION "0.1.0"

struct node {
    uint8_t uuid[16];    /* permanent: stored in state_dir */
    uint8_t boot_id[16]; /* new at each start */
    char address[65];    /* where peers reach this node; "" without a peer link */
    pid_t dying;         /* the earlier daemon of state_dir, if the kernel still keeps it, and with it its sockets; or 0 */
    bool damaged;        /* the file in state_dir has no uuid: see node_renew */
};

/* Reads the uuid from state_dir, or creates it there; with state_dir "" it is random. Creates a new boot
 * id. A file that is damaged stays until node_renew, before which another uuid may be set, such as that of the keeper. */
enum rdt_status node_load(const char *state_dir, struct node *node_p, struct rdt_error *err);

/* If the file is damaged: gives it the name node_uuid.damaged, and writes the node's uuid. state_dir is locked. If that does
 * not work, the node has its uuid until the daemon ends, and stays `damaged`. */
void node_renew(const char *state_dir, struct node *node);

/* Whether node_load could read or make the uuid there, without making anything: SYSTEM, INVALID. */
enum rdt_status node_check(const char *state_dir, struct rdt_error *err);

/* Locks state_dir, because two daemons with one uuid would be taken for one node; sets node->dying. *lock_p is -1 if there is
 * no state_dir; the caller closes it at the end. Error: EXISTS. */
enum rdt_status node_lock(const char *state_dir, struct node *node, int *lock_p, struct rdt_error *err);

/* Whether uuid and address of a ref name this node. A zero uuid means the daemon at the address; without
 * an address, the daemon that is asked. */
bool node_is_here(const struct node *node, const uint8_t uuid[16], const char *address);

/* Writes 32 hex digits and a final 0. */
void node_hex(const uint8_t uuid[16], char text_p[33]);

#endif
