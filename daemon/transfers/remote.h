/* SPDX-License-Identifier: Apache-2.0 */
/* A remote: the state of all transfers from and to one other node, from the first one until the node is forgotten.
 * peer->remote points to it. */
#ifndef DAEMON_REMOTE_H
#define DAEMON_REMOTE_H

#include "daemon/base/log.h"
#include "daemon/peers/peer.h"
#include "daemon/transfers/transfer.h"

/* For replica.c: what this node has of that node's objects. */
struct remote_replicas {
    unsigned n;               /* replicas, also those that only their readers have */
    uint64_t noted;           /* the latest PullMeta.replica_note that has come on this link; 0: none */
    struct list listed;       /* struct replica.by_remote */
    struct list to_report;    /* the same, after a link came up: until they were reported, or dropped */
    struct list sums_awaited; /* struct replica.by_sum: that node has promised their checksum */
    struct list sums_lost;    /* the same, after the link on which it had */
    struct slice report, lose_sums;
};

/* For replica_directory.c: what that node has of this node's objects. */
struct remote_entries {
    struct list receiving; /* struct replica_entry.by_node: its replica is not whole */
    struct list judged;    /* the same, until judge_some has told them the verdict */
    struct list whole;     /* struct replica_entry.by_node: it is */
    struct list lost;      /* the same: LOST */
    struct list ending;    /* the same, after the link ended or came up: until they are lost or removed */
    struct list sums_due;  /* struct sum_due.link: checksums that it will be told */
    struct list sums_ending;
    struct slice end, judge;
    enum fanout_verdict verdict; /* of `judged` */
    uint64_t notes;              /* PullMeta.replica_note of the latest answer to it */
    uint64_t lost_until_ns;      /* 0: since the link ended, the node serves none of them */
};

/* Pings of the peer. */
struct remote_ping {
    uint64_t asked, answered; /* the numbers of the last peer_probe, and of the last that was answered */
    bool due;                 /* the peer has not answered that ping yet */
    bool ask_again;           /* a transfer waits for a later one */
};

/* For serve_answer.c: answers to that node, of which the link gets so many bytes at a time. */
struct remote_answers {
    struct list held; /* struct serve.held */
    struct slice slice;
    uint64_t reading_bytes;    /* which threads read for answers, in this round */
    uint64_t reading_since_ns; /* if there are some */
    _Atomic unsigned round;    /* another one begins when reading takes long, and gives the room to others */
};

/* Transfers by slower transports than both nodes have. */
struct remote_fell_back {
    uint64_t n;
    struct log_rare lines;
    char to[140]; /* what was logged last about that: "stream instead of ucx" */
};

struct remote_counts {
    unsigned n_pulls, n_serves; /* active transfers from and to that node */
    uint64_t bytes_pulled, bytes_served;
};

struct remote {
    struct list link; /* in transfers->remotes */
    struct transfers *transfers;
    struct peer *peer;
    struct list pending;    /* struct transfer.pull.by_peer: in state LINK or QUEUED */
    struct list pulls;      /* struct transfer.pull.by_peer: in state ASKED or later */
    struct list looked;     /* the same, while look_some has not looked at them after an event of a connection or a ping */
    struct list failing[2]; /* the same, after the end of the link: before fail_some has looked at them, and after */
    struct map by_number;   /* the reader's number of its pull -> struct serve, of the present link */
    struct list serves;     /* struct serve.by_remote: the same */
    struct remote_answers answers; /* to those pulls */
    struct list lost_serves;       /* struct serve.by_remote: of an earlier link, until stop_some stops them */
    struct slice fail, stop;       /* after the end of a link */
    struct slice look;             /* at `looked` */
    bool connected, refused;       /* with `look`: what connections to that node have reported */
    struct rdt_error why_lost;     /* why it has ended */
    struct remote_replicas replicas;
    struct remote_entries entries;
    struct list transports; /* struct peer_transport.link */
    struct list in_groups;  /* struct peer_transport.link: sides of groups with that node */
    struct list members;    /* struct broadcast_member.link: what this node fetches for that node's broadcasts */
    unsigned n_members;
    struct remote_counts counts;
    unsigned n_users;       /* struct transfer.pull.origin and .read_from that are this remote */
    uint64_t slow_until_ns; /* until then it is a leaf of every fan-out (fanout.h); 0: it was never slow */
    struct remote_fell_back fell_back;
    struct log_rare rebuilt_lines; /* users can cause them */
    struct remote_ping ping;
};

/* Where walks over the lists of the remote take turns. NULL: the daemon closes its transfers, so they run at once. */
struct slices *remote_slices(const struct remote *remote);

/* Finds or creates the peer's remote. NULL: no memory. */
struct remote *remote_get(struct transfers *transfers, struct peer *peer);

/* Frees a remote that nothing uses any more. Its peer may have been freed already. */
void remote_free(struct remote *remote);

/* Sets *at_p, which is pull.origin or pull.read_from of a transfer: a remote in use is not freed. */
void remote_use(struct remote **at_p, struct remote *remote);

/* Sends by peer_send. SHUTTING_DOWN while the daemon closes its transfers, since the peer may not exist any more. */
enum rdt_status remote_send(struct remote *remote, enum rdt_peer_message type, const ProtobufCMessage *message,
                            struct rdt_error *err);

/* The same for what belongs to the link of that epoch. PEER_LOST: that link has ended. */
enum rdt_status remote_send_over(struct remote *remote, unsigned epoch, enum rdt_peer_message type,
                                 const ProtobufCMessage *message, struct rdt_error *err);

/* Pings the peer by peer_probe and counts the ping in ping.asked. One ping is under way at a time: a failure
 * that is found meanwhile needs the next ping, because the node may have ended since it answered. */
void remote_ping(struct remote *remote);

bool remote_pickles_trusted(const struct remote *remote); /* whether the option trusted_pickles lists the node */

/* A failed operation may be the first sign that the whole node is lost. The transfer has noted the failure
 * (pull.failure). It ends with that failure when the peer has answered a ping, or with PEER_LOST if the link
 * goes down instead. */
void remote_verify(struct transfer *transfer);

#endif
