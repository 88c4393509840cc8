/* SPDX-License-Identifier: Apache-2.0 */
/* What rdtd and its keeper say to each other.
 *
 * The keeper (rdtd-keeper) holds file descriptors for a daemon, each under a number that the daemon chooses, while no
 * daemon runs. It understands nothing of what they are. The daemon's journal, which is one of them, says that.
 *
 * They speak over a SOCK_SEQPACKET Unix socket on one machine: one struct keeper_message a packet, in the byte order of the
 * machine, cut after its last id. Descriptors travel with the packet (SCM_RIGHTS), one for each id.
 *
 *   daemon                                    keeper
 *     | HELLO, version, pid ------------------>|  is this my user, or root? does no other daemon use me?
 *     |<---------------------- READY, how many |  or BUSY with the pid of the daemon that does
 *     | FETCH --------------------------------->|
 *     |<----------------- FDS ids, descriptors |  as often as needed; the last one has no ids
 *     | STORE ids, descriptors ---------------->|  no answer; replaces what has the same id
 *     | DROP ids ------------------------------>|  no answer; ids that are not there are ignored
 *     |<---------------------------- FULL ids  |  these could not be stored: too many files are open
 *
 * The socket is ordered, so a DROP after a STORE of the same id ends it. What the daemon has sent reaches the keeper even
 * if the daemon dies right after it. The daemon's end, seen as the end of its connection, changes nothing that is held. */
#ifndef DAEMON_KEEPER_PACKET_H
#define DAEMON_KEEPER_PACKET_H

#include <stddef.h>
#include <stdint.h>

#define KEEPER_VERSION 1u
#define KEEPER_MAX_IDS 250u /* descriptors in one packet; the kernel allows 253 */

enum keeper_type {
    KEEPER_HELLO = 1,
    KEEPER_READY,
    KEEPER_BUSY,
    KEEPER_FETCH,
    KEEPER_FDS,
    KEEPER_STORE,
    KEEPER_DROP,
    KEEPER_FULL
};

struct keeper_message {
    uint16_t type;  /* enum keeper_type */
    uint16_t n;     /* ids */
    uint32_t value; /* HELLO, READY: KEEPER_VERSION; BUSY: a pid */
    uint64_t count; /* HELLO: the daemon's pid; READY: how many descriptors are held */
    uint64_t ids[KEEPER_MAX_IDS];
};

static inline size_t keeper_message_bytes(unsigned n)
{
    return offsetof(struct keeper_message, ids) + n * sizeof(uint64_t);
}

/* How both ends send and receive packets. Neither call waits. */

/* fds: [message->n], borrowed; NULL: none. 0: sent; otherwise a number of errno, EAGAIN if the other end has to read first. */
int keeper_packet_send(int fd, const struct keeper_message *message, const int *fds);

/* Returns the number of descriptors in fds_p [KEEPER_MAX_IDS], which belong to the caller. -1, with errno: EAGAIN: there is no
 * packet; EPIPE: the other end has closed the connection; EPROTO: the packet is no message, and its descriptors are closed. */
int keeper_packet_receive(int fd, struct keeper_message *message_p, int *fds_p);

#endif
