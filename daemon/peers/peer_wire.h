/* SPDX-License-Identifier: Apache-2.0 */
/* The lower half of a peer link: TCP and TLS. It calls the upper half, peer_link.c, by link->upper. Private to the two. */
#ifndef DAEMON_PEER_WIRE_H
#define DAEMON_PEER_WIRE_H

#include "daemon/peers/peer_link.h"

struct peer_wire_events {
    uv_idle_cb on_turn; /* of link->turn, which is active while the wire or the upper half has work for the next iteration */
    /* May end the link. */
    enum rdt_status (*on_frame)(struct peer_link *link, const struct frame *frame, struct rdt_error *err);
    void (*on_refused)(struct peer_link *link, const struct rdt_error *why); /* what was received ends the link */
    void (*on_lost)(struct peer_link *link, const struct rdt_error *why);    /* the connection ends the link */
    void (*on_handle_gone)(struct peer_link *link);                          /* after peer_wire_close */
};

/* Starts to connect to link->host and link->port; failures are reported later. account: the user on whose
 * threads a name is looked up; NULL: the daemon. */
void peer_wire_dial(struct peer_link *link, struct account *account);
void peer_wire_look_up_too(struct peer_link *link, struct account *account);
void peer_wire_accept(struct peer_link *link, uv_stream_t *listener);
void peer_wire_close(struct peer_link *link);
void peer_wire_fini(struct peer_link *link);

/* After the queue has changed: counts it among those of all links. */
void peer_wire_count_queue(struct peer_link *link);

/* Encrypts and writes the next slice, unless one is being written. */
void peer_wire_pump(struct peer_link *link);

/* The same for all of a short queue, without waiting for the socket. */
void peer_wire_push_out(struct peer_link *link);

/* Handles what was received and did not fit into an earlier iteration. */
void peer_wire_continue(struct peer_link *link);

/* Calls on_turn in the next iteration. Before the link is up, which costs cryptography, all links share slices for this. */
void peer_wire_want_turn(struct peer_link *link);

/* Ends the link in the next iteration, for callers that were called by the rooms above. */
void peer_wire_fail(struct peer_link *link, const struct rdt_error *why);

/* The node at the other end, for people; and the sentence of every timeout of an established link. */
void peer_wire_describe(const struct peer_link *link, char text_p[128]);
void peer_wire_no_answer(const struct peer_link *link, struct rdt_error *why);

#endif
