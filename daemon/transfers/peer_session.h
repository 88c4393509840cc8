/* SPDX-License-Identifier: Apache-2.0 */
/* The session of a peer: the state of transfers about one node that was ever asked or served. peer->session
 * points to it. */
#ifndef DAEMON_PEER_SESSION_H
#define DAEMON_PEER_SESSION_H

#include "daemon/base/log.h"
#include "daemon/peers/peer.h"
#include "daemon/transfers/transfer.h"

struct peer_session {
    struct list link; /* in transfers->sessions */
    struct transfers *transfers;
    struct peer *peer;
    struct list pending;         /* struct transfer.pull.by_peer: in state LINK or QUEUED */
    struct list incoming;        /* struct transfer.pull.by_peer: in state ASKED or later */
    struct map serves;           /* the reader's number of its pull -> struct serve */
    struct list replica_entries; /* struct replica_entry.by_node: replicas of this node's objects on that node */
    struct list lost_entries;    /* the same, after the link was lost */
    struct list transports;      /* struct peer_transport.link */
    struct list in_groups;       /* struct peer_transport.link: sides of groups with that node */
    struct list members;         /* struct broadcast_member.link: this node as a member of that node's broadcasts */
    unsigned n_members;
    unsigned n_in, n_out; /* active transfers from and to that node */
    unsigned n_replicas;  /* replicas on this node of that node's objects */
    uint64_t bytes_in, bytes_out;
    uint64_t slow_until_ns; /* until then it is a leaf of every fan-out (fanout.h); 0: it was never slow */
    uint64_t fell_back;     /* transfers from that node by a slower transport than both nodes have */
    struct log_rare fell_back_lines, rebuilt_lines; /* users can cause both */
    char fell_back_to[140];                         /* what was logged last about that: "stream instead of ucx" */
    uint64_t asked;                                 /* the number of the last peer_probe */
    bool answer_due;                                /* the peer has not answered that ping yet */
};

/* Finds or creates the session of a peer. NULL: no memory. */
struct peer_session *peer_session_get(struct transfers *transfers, struct peer *peer);

/* Frees a session that nothing uses any more. Its peer may have been freed already. */
void peer_session_free(struct peer_session *session);

/* Sends by peer_send. SHUTTING_DOWN while the daemon closes its transfers, since the peer may not exist any more. */
enum rdt_status peer_session_send(struct peer_session *session, enum rdt_peer_message type, const ProtobufCMessage *message,
                                  struct rdt_error *err);

/* Pings the peer by peer_probe and counts the ping in session->asked. One ping is under way at a time: a failure
 * that is found meanwhile needs the next ping, because the node may have ended since it answered. */
void peer_session_ping(struct peer_session *session);

/* A failed operation may be the first sign that the whole node is lost. The transfer has noted the failure
 * (pull.failed). It ends with that failure when the peer has answered a ping, or with PEER_LOST if the link
 * goes down instead. */
void peer_session_verify(struct transfer *transfer);

#endif
