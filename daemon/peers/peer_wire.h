/* SPDX-License-Identifier: Apache-2.0 */
/* The lower half of a peer link: TCP and TLS. Calls between the two halves. Private to peer_link.c and
 * peer_wire.c. */
#ifndef DAEMON_PEER_WIRE_H
#define DAEMON_PEER_WIRE_H

#include "daemon/peers/peer_link.h"

/* ---- peer_wire.c ---- */

/* Starts to connect to link->host and link->port; failures are reported later. account: the user on whose
 * threads a name is looked up; NULL: the daemon. */
void peer_wire_dial(struct peer_link *link, struct account *account);
void peer_wire_look_up_too(struct peer_link *link, struct account *account);
void peer_wire_accept(struct peer_link *link, uv_stream_t *listener);
void peer_wire_close(struct peer_link *link);
void peer_wire_fini(struct peer_link *link);

/* Encrypts and writes the next slice, unless one is being written. */
void peer_wire_pump(struct peer_link *link);

/* The same for all of a short queue, without waiting for the socket. */
void peer_wire_push_out(struct peer_link *link);

/* Handles what was received and did not fit into an earlier iteration. */
void peer_wire_continue(struct peer_link *link);

/* ---- peer_link.c ---- */

/* Ends the link now, or in the next iteration (for callers that were called by the rooms above). */
void peer_link_end(struct peer_link *link, const struct rdt_error *why);
void peer_link_fail(struct peer_link *link, const struct rdt_error *why);

/* Ends the link because of what was received, and tells the other end. */
void peer_link_refuse(struct peer_link *link, const struct rdt_error *why);

/* Makes the sentence of every timeout of an established link. */
void peer_link_no_answer(const struct peer_link *link, struct rdt_error *why);

/* Handles a frame, which may end the link. */
enum rdt_status peer_link_take_frame(struct peer_link *link, const struct frame *frame, struct rdt_error *err);

void peer_link_on_turn(uv_idle_t *turn);
void peer_link_handle_gone(struct peer_link *link);

#endif
