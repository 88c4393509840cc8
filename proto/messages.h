/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of clients and the messages between daemons, with their type numbers, which are fixed for ever.
 *
 * RDT_REQUEST_MAP is the one table of requests. From each row come the type number (enum rdt_message), the
 * checks and the texts that client and daemon share (proto/verb.h), the prototype of the daemon's handler and
 * its place in the dispatch (daemon/rpc/rpc.c): a row whose handler is missing does not link, and the linker
 * names the handler.
 */
#ifndef PROTO_MESSAGES_H
#define PROTO_MESSAGES_H

/* Between client and daemon. X(number, NAME, request, reply, properties, unmet):
 * - request, reply: messages of rdt.proto in protobuf-c's spelling; the daemon's handler is rpc_<request>;
 * - properties: VERB_ constants of proto/verb.h, joined by |; 0 for none;
 * - unmet: what had not happened when the request timed out; "" for a request that is answered at once. */
#define RDT_REQUEST_MAP(X)                                                                                                     \
    X(2, PING, ping, ping, VERB_REPEATABLE, "")                                                                                \
    X(3, STATUS, status, status_reply, VERB_REPEATABLE | VERB_SHOWS, "")                                                       \
    X(4, ALLOC, alloc, region_reply, VERB_CANCELLABLE | VERB_REPEATABLE, "the memory was not allocated")                       \
    X(5, IMPORT, import, region_reply, VERB_REPEATABLE, "")                                                                    \
    X(6, RELEASE_REGION, release_region, region_released, VERB_REPEATABLE, "")                                                 \
    X(7, PUT, put, put_reply, VERB_CANCELLABLE | VERB_NOT_DRAINING | VERB_REPEATABLE, "the snapshot was not complete")         \
    X(8, FETCH, fetch, empty, VERB_KEEPS_REQUEST | VERB_REPEATABLE, "")                                                        \
    X(9, CANCEL, cancel, empty, 0, "")                                                                                         \
    X(10, RELEASE, release, empty, 0, "")                                                                                      \
    X(11, FREE, free, empty, VERB_FOR_PEERS | VERB_REPEATABLE, "")                                                             \
    X(12, WAIT, wait, object_info, VERB_WAITS | VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_REPEATABLE, "the object was not put") \
    X(13, WAIT_FREED, wait_freed, empty, VERB_WAITS | VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_REPEATABLE,                     \
      "the memory was not released")                                                                                           \
    X(14, CANCEL_REQUEST, cancel_request, empty, 0, "")                                                                        \
    X(15, STAT, stat, object_info, VERB_FOR_PEERS | VERB_REPEATABLE, "")                                                       \
    X(16, LIST, list, list_reply, VERB_FOR_PEERS | VERB_REPEATABLE, "")                                                        \
    X(17, EXPLAIN, explain, list_reply, VERB_REPEATABLE, "")                                                                   \
    X(18, PUBLISH, publish, publish_reply, VERB_FOR_PEERS | VERB_REPEATABLE, "")                                               \
    X(19, UNPUBLISH, unpublish, empty, VERB_FOR_PEERS | VERB_REPEATABLE, "")                                                   \
    X(20, WATCH, watch, empty, VERB_REPEATABLE, "")                                                                            \
    X(21, HOLD, hold, hold_reply, VERB_WAITS | VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_REPEATABLE, "the object was not put")  \
    X(22, METRICS, metrics, metrics_reply, VERB_REPEATABLE | VERB_SHOWS, "")                                                   \
    X(23, DOCTOR, doctor, doctor_reply, VERB_REPEATABLE | VERB_SHOWS, "")                                                      \
    X(24, TRACE, trace, trace_reply, VERB_REPEATABLE, "")                                                                      \
    X(30, GROUP_CREATE, group_create, empty, VERB_CANCELLABLE | VERB_NOT_DRAINING, "the group was not formed")                 \
    X(31, GROUP_DESTROY, group_destroy, empty, 0, "the group did not end")                                                     \
    X(32, BROADCAST, broadcast, empty, VERB_CANCELLABLE | VERB_NOT_DRAINING, "the broadcast was not complete")                 \
    X(40, BACKEND_LOAD, backend_load, backend_reply, VERB_ADMIN | VERB_NOT_DRAINING, "the backend was not loaded")             \
    X(41, BACKEND_UNLOAD, backend_unload, backend_reply, VERB_ADMIN | VERB_NOT_DRAINING, "the backend was not unloaded")       \
    X(42, LOG_LEVEL, log_level, log_level_reply, VERB_ADMIN | VERB_PLAIN, "")                                                  \
    X(43, RELOAD, reload, reload_reply, VERB_ADMIN | VERB_NOT_DRAINING | VERB_PLAIN, "")                                       \
    X(44, DRAIN, drain, empty, VERB_ADMIN | VERB_PLAIN, "")                                                                    \
    X(45, END_CLIENT, end_client, empty, VERB_PLAIN, "")                                                                       \
    X(46, CONFIG, config, config_reply, VERB_ADMIN | VERB_REPEATABLE | VERB_SHOWS, "")                                         \
    X(50, READY, ready, empty, VERB_REPEATABLE, "")                                                                            \
    X(51, RESUME, resume, resume_reply, VERB_KEEPS_REQUEST, "")                                                                \
    X(52, CLOSE, close, empty, VERB_REPEATABLE, "")                                                                            \
    X(53, DROP_CACHED, drop_cached, empty, VERB_REPEATABLE, "")                                                                \
    X(60, NODES, nodes, nodes_reply, VERB_REPEATABLE | VERB_SHOWS, "")                                                         \
    X(70, PUBLISH_PART, publish_part, publish_part_reply, VERB_WAITS | VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_NOT_DRAINING,  \
      "the version was not complete")                                                                                          \
    X(71, SHARDS, shards, shards_reply, VERB_FOR_PEERS | VERB_REPEATABLE, "")                                                  \
    X(72, GROWING, growing, growing_reply, VERB_WAITS | VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_REPEATABLE,                   \
      "no version of the name has grown")                                                                                      \
    X(76, EXISTS, exists, exists_reply, VERB_FOR_PEERS | VERB_REPEATABLE | VERB_KEEPS_REQUEST, "")                             \
    X(77, PUT_MANY, put_many, put_many_reply, VERB_NOT_DRAINING | VERB_REPEATABLE | VERB_KEEPS_REQUEST, "")                    \
    X(78, PUBLISH_MANY, publish_many, publish_many_reply, VERB_REPEATABLE, "")                                                 \
    X(80, FOLLOW, follow, empty, VERB_REPEATABLE, "")                                                                          \
    X(81, PREPARE, prepare, prepare_reply, VERB_WAITS | VERB_CANCELLABLE | VERB_REPEATABLE,                                    \
      "no newer version is whole on this node")                                                                                \
    X(82, COMMIT, commit, empty, VERB_REPEATABLE, "")                                                                          \
    X(83, UNFOLLOW, unfollow, empty, VERB_REPEATABLE, "")                                                                      \
    X(84, FOLLOWERS, followers, followers_reply, VERB_REPEATABLE | VERB_SHOWS, "")                                             \
    X(110, SCRUB, scrub, scrub_reply, VERB_ADMIN | VERB_WAITS | VERB_CANCELLABLE, "not all files were read")                   \
    X(111, SUM, sum, sum_reply, VERB_WAITS | VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_REPEATABLE,                              \
      "its checksum was not computed")                                                                                         \
    X(90, STORE, store, store_reply, VERB_WAITS | VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_NOT_DRAINING | VERB_REPEATABLE,     \
      "the object was not stored")                                                                                             \
    X(85, CACHE, cache, cache_reply, VERB_REPEATABLE | VERB_SHOWS, "")                                                         \
    X(86, CACHE_FLUSH, cache_flush, cache_flush_reply, VERB_CANCELLABLE | VERB_REPEATABLE | VERB_PLAIN,                        \
      "not all objects were evicted")                                                                                          \
    X(87, LOOKUP, lookup, lookup_reply, VERB_FOR_PEERS | VERB_REPEATABLE | VERB_KEEPS_REQUEST, "")                             \
    X(88, LEASE_END, lease_end, empty, VERB_FOR_PEERS | VERB_KEEPS_REQUEST, "")                                                \
    X(91, LOAD_MANY, load_many, load_many_reply, VERB_CANCELLABLE | VERB_FOR_PEERS | VERB_REPEATABLE | VERB_KEEPS_REQUEST,     \
      "not all objects were copied")

/* HELLO comes first on a connection and once; daemon/conn.c handles it, since it makes the client that other
 * requests belong to. */
#define RDT_MESSAGE_MAP(X) X(1, HELLO, hello, hello_reply, 0, "") RDT_REQUEST_MAP(X)

enum rdt_message {
#define X(number, NAME, request, reply, properties, unmet) RDT_MSG_##NAME = (number),
    RDT_MESSAGE_MAP(X)
#undef X
};

/* Events, which the daemon sends to a client unasked: frames with FRAME_EVENT. */
enum rdt_event_type {
    RDT_EVENT_FETCH_DONE = 128,  /* FetchDone */
    RDT_EVENT_WATCHED = 129,     /* Event */
    RDT_EVENT_REGION_GONE = 132, /* RegionGone */
    RDT_EVENT_REGION_BACK = 133, /* RegionBack */
    RDT_EVENT_HOLD_LOST = 134,   /* ErrorReply, with the request id of the HOLD: it does not hold the object any more */
    RDT_EVENT_FETCH_FDS = 135,   /* FetchFds */
};

/* Between two daemons. X(number, NAME, message); rdt_peer.proto says which daemon sends each message, and when.
 * peer_link_decode (daemon/peers/peer_link.c) decodes all of them by this table. Reserved: 5, which asked for an offer. */
#define RDT_PEER_MESSAGE_MAP(X)               \
    X(1, HELLO, link_hello)                   \
    X(2, PING, link_ping)                     \
    X(3, PONG, link_ping)                     \
    X(4, OFFER, offer)                        \
    X(6, PULL, pull)                          \
    X(7, PULL_META, pull_meta)                \
    X(8, PULL_START, pull_start)              \
    X(9, PULL_END, pull_end)                  \
    X(10, PULL_ABORT, pull_abort)             \
    X(12, CALL, call)                         \
    X(13, CALL_REPLY, call_reply)             \
    X(14, GOODBYE, goodbye)                   \
    X(15, PULL_KEYS, pull_keys)               \
    X(24, PULL_ALIVE, pull_alive)             \
    X(25, REPLICAS, replicas)                 \
    X(26, PULL_TICKET, pull_ticket)           \
    X(27, HOLDS, holds)                       \
    X(40, GROUP_PROPOSE, group_propose)       \
    X(41, GROUP_ACCEPT, group_accept)         \
    X(42, GROUP_COMMIT, group_commit)         \
    X(43, GROUP_READY, group_status)          \
    X(44, GROUP_FAILED, group_status)         \
    X(45, GROUP_END, group_status)            \
    X(46, GROUP_ENDED, group_status)          \
    X(47, BROADCAST, group_broadcast)         \
    X(48, BROADCAST_RESULT, broadcast_result) \
    X(50, PULL_CREDIT, pull_credit)           \
    X(60, NAME, name)

enum rdt_peer_message {
    RDT_PEER_PULL_ABORTED = 11, /* Nobody sends it any more; one of a daemon of an older version is passed over. */
#define X(number, name, message) RDT_PEER_##name = (number),
    RDT_PEER_MESSAGE_MAP(X)
#undef X
};

#endif
