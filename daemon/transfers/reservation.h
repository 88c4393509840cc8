/* SPDX-License-Identifier: Apache-2.0 */
/* Reservations: memory for the items of one FETCH message. All items that are received from or copied on one
 * node get their memory together, or none does. Items are grouped by the node that they come from; an item
 * that has to wait for a put leaves its group. No memory is held while anything waits, so a node with objects
 * that have not been put, or a silent node, delays only its own items.
 *
 *   item begins -> join: its size is unknown -> wait: its size is known ----> on_room, when all sizes of the group
 *                                     |                                       are known: memory, or an error for all
 *                                     `-----> leave: it needs no memory, waits for a put, or has ended
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_RESERVATION_H
#define DAEMON_RESERVATION_H

#include "daemon/memory/region.h"
#include "proto/list.h"

struct remote;
struct reservation;
struct reservation_group;
struct transfer;

/* The memory that a transfer waited for may be allocated now; or, with err, the group needs more than there
 * is and the transfer must fail. */
typedef void (*reservation_room)(struct transfer *transfer, const struct rdt_error *err);

/* A transfer's place in a reservation. All of it is 0 or NULL while the transfer has none. */
struct reservation_item {
    struct reservation *message;     /* the reservation of its FETCH message, until it joins a group; borrowed */
    struct reservation_group *group; /* the group that reserves memory together; NULL: none */
    struct list link;                /* in group->ready */
    uint64_t bytes;
    reservation_room on_room;
};

/* For the transfers of one message, which owns a reference. NULL: no memory; then each item reserves for itself. */
struct reservation *reservation_create(struct regions *regions);

/* All items of the message have begun. Drops the reference of the message. NULL is fine. */
void reservation_seal(struct reservation *reservation);

/* Puts a transfer that has a reservation into the group of this node (NULL: our own), until it waits or leaves. */
void reservation_join(struct transfer *transfer, struct remote *peer);

/* The transfer needs stream_bytes and nothing else. true: on_room is called, perhaps at once; false: it is in
 * no group and may go on. */
bool reservation_wait(struct transfer *transfer, reservation_room on_room);

/* Takes the transfer out of its group; does nothing if it is in none. */
void reservation_leave(struct transfer *transfer);

#endif
