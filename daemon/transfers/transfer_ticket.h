/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers in ordered queues: tickets (ticket.h) for transfers whose operations are in ordered queues of a
 * transport. transfer_ticket.c tells how both ends agree. A record with a ticket has record.ticket. */
#ifndef DAEMON_TRANSFER_TICKET_H
#define DAEMON_TRANSFER_TICKET_H

#include "daemon/transfers/transfer.h"

struct peer_transport;
struct serve;

/* The events that ordered queues report to the transfers whose tickets they hold. The table is given at start; each callback
 * may end the transfer. */
struct transfer_ticket_events {
    void (*receive)(struct transfer *); /* TICKET: both ends have their tickets: posts the receives */
    void (*waits)(struct transfer *);   /* the transfer waits in a queue, so it has not stalled */
    void (*send)(struct serve *);       /* SERVE_TICKET: both ends have their tickets: sends */
    void (*fail_serve)(struct serve *, const struct rdt_error *err);
};

void transfer_tickets_init(struct transfers *transfers);

/* Whether the operations on this connection are in an ordered queue on either node; the same for the owner's
 * side, on this node. */
bool transfer_ticket_wanted(const struct transfer *transfer, const struct peer_transport *pt);
bool transfer_ticket_needed(const struct serve *serve, const struct peer_transport *pt);

/* The reader's side, before PULL_START is sent: creates the ticket and queues it. */
enum rdt_status transfer_ticket_begin_pull(struct transfer *transfer, struct rdt_error *err);

/* The owner's side, when its memory is ready: creates the ticket. Then, in SERVE_TICKET, queues it; that may
 * end the serve. */
enum rdt_status transfer_ticket_begin_serve(struct serve *serve, struct rdt_error *err);
void transfer_ticket_queue_serve(struct serve *serve);

void transfer_ticket_serve_stalled(struct serve *serve);         /* SENDING: fails the serve if the reader takes nothing */
void transfer_ticket_receives_posted(struct transfer *transfer); /* all receives are posted; may end the transfer */

/* All operations, or nearly all, are posted: the next transfer of the queue may post. */
void transfer_ticket_pass_on(const struct transfer_record *record);

/* Gives the ticket up: no operation of the transfer is under way. Does nothing without a ticket. */
void transfer_ticket_leave(struct transfer_record *record);

/* Whether the transfer waits behind others in a queue. */
bool transfer_ticket_waits_behind(const struct transfer_record *record);
void transfer_ticket_on_message(struct remote *remote, const Rdt__Pb__PullTicket *message);

#endif
