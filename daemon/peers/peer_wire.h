/* The lower half of a peer link: TCP and TLS. What both halves call of each other. Private to peer_link.c and
 * peer_wire.c. */
#ifndef DAEMON_PEER_WIRE_H
#define DAEMON_PEER_WIRE_H

#include "daemon/peers/peer_link.h"

/* ---- peer_wire.c ---- */

/* To link->host, link->port; failures come later. account: the user's on whose threads a name is looked up, or NULL. */
void peer_wire_dial(struct peer_link *link, struct account *account);
void peer_wire_accept(struct peer_link *link, uv_stream_t *listener);
void peer_wire_close(struct peer_link *link);
void peer_wire_fini(struct peer_link *link);

/* Encrypts and writes the next slice, unless one is being written. */
void peer_wire_pump(struct peer_link *link);

/* The same for all of a short queue, without waiting for the socket. */
void peer_wire_push_out(struct peer_link *link);

/* Works off what has come and was too much for an earlier turn. */
void peer_wire_go_on(struct peer_link *link);

/* ---- peer_link.c ---- */

/* Ends it now, or when the loop turns (for callers that the layer above may have called). */
void peer_link_end(struct peer_link *link, const struct rdt_error *why);
void peer_link_fail(struct peer_link *link, const struct rdt_error *why);

/* Ends it because of what came; the other end is told. */
void peer_link_broke(struct peer_link *link, const struct rdt_error *why);

/* The sentence that every timeout of an established link has. */
void peer_link_no_answer(const struct peer_link *link, struct rdt_error *why);

/* May end the link. */
enum rdt_status peer_link_take_frame(struct peer_link *link, const struct frame *frame, struct rdt_error *err);

void peer_link_on_turn(uv_idle_t *turn);
void peer_link_handle_closed(uv_handle_t *handle);
void peer_link_handle_gone(struct peer_link *link);

#endif
