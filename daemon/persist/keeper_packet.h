/* SPDX-License-Identifier: Apache-2.0 */
/* The packets of proto/keeper.h, as both ends send and receive them: one struct keeper_message with a descriptor for
 * each of its ids, or with none. Neither call waits. */
#ifndef DAEMON_KEEPER_PACKET_H
#define DAEMON_KEEPER_PACKET_H

#include "proto/keeper.h"

/* fds: [message->n], borrowed; NULL: none. 0: sent; otherwise a number of errno, EAGAIN if the other end has to read first. */
int keeper_packet_send(int fd, const struct keeper_message *message, const int *fds);

/* Returns the number of descriptors in fds_p [KEEPER_MAX_IDS], which belong to the caller. -1, with errno: EAGAIN: there is no
 * packet; EPIPE: the other end has closed the connection; EPROTO: the packet is no message, and its descriptors are closed. */
int keeper_packet_receive(int fd, struct keeper_message *message_p, int *fds_p);

#endif
