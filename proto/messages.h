/* Type numbers of the frames, fixed for ever. One X-macro for each socket: a test checks that every request has a handler. */
#ifndef PROTO_MESSAGES_H
#define PROTO_MESSAGES_H

/* Client and daemon. X(number, NAME, request message, reply message) in protobuf-c's spelling. */
#define RDT_MESSAGE_MAP(X)                       \
    X(1, HELLO, hello, hello_reply)              \
    X(2, PING, ping, ping)                       \
    X(3, STATUS, empty, status_reply)            \
    X(4, ALLOC, alloc, region_reply)             \
    X(5, IMPORT, import, region_reply)           \
    X(6, RELEASE_REGION, release_region, region_kept)  \
    X(7, PUT, put, put_reply)                    \
    X(8, FETCH, fetch, empty)                    \
    X(9, CANCEL, cancel, empty)                  \
    X(10, RELEASE, release, empty)               \
    X(11, FREE, free, empty)                     \
    X(12, WAIT, wait, object_info)               \
    X(13, WAIT_FREED, wait_freed, empty)         \
    X(14, CANCEL_REQUEST, cancel_request, empty) \
    X(15, STAT, stat, object_info)               \
    X(16, LIST, list, list_reply)                \
    X(17, EXPLAIN, explain, list_reply)          \
    X(18, PUBLISH, publish, publish_reply)       \
    X(19, UNPUBLISH, unpublish, empty)           \
    X(20, WATCH, watch, empty)                   \
    X(21, HOLD, hold, hold_reply)                \
    X(30, GROUP_CREATE, group_create, empty)     \
    X(31, GROUP_DESTROY, group_destroy, empty)    \
    X(32, BROADCAST, broadcast, empty)           \
    X(40, BACKEND_LOAD, backend_load, backend_reply) \
    X(41, BACKEND_UNLOAD, backend_unload, backend_reply) \
    X(50, READY, ready, empty)

enum rdt_message {
#define X(number, name, request, reply) RDT_MSG_##name = (number),
    RDT_MESSAGE_MAP(X)
#undef X
};

/* Events, daemon to client: FRAME_EVENT. */
enum rdt_event_type {
    RDT_EVENT_FETCH_DONE = 128, /* FetchDone */
    RDT_EVENT_WATCHED = 129,    /* Event */
    RDT_EVENT_REGION_GONE = 132, /* RegionGone */
    RDT_EVENT_REGION_BACK = 133, /* RegionBack */
};

/* Daemon and daemon. X(number, NAME, message): rdt_peer.proto says who sends it when. */
#define RDT_PEER_MESSAGE_MAP(X)        \
    X(1, HELLO, link_hello)            \
    X(2, PING, link_ping)              \
    X(3, PONG, link_ping)              \
    X(4, OFFER, offer)                 \
    X(5, OFFER_REQUEST, offer_request) \
    X(6, PULL, pull)                   \
    X(7, PULL_META, pull_meta)         \
    X(8, PULL_START, pull_start)       \
    X(9, PULL_END, pull_end)           \
    X(10, PULL_ABORT, pull_abort)      \
    X(11, PULL_ABORTED, pull_aborted)  \
    X(12, CALL, call)                  \
    X(13, CALL_REPLY, call_reply)      \
    X(14, GOODBYE, goodbye)            \
    X(15, PULL_KEYS, pull_keys)        \
    X(24, PULL_PARKED, pull_parked)    \
    X(25, COPIES, copies)              \
    X(26, PULL_TURN, pull_turn)        \
    X(27, HOLDS, holds)                \
    X(40, GROUP_PROPOSE, group_propose) \
    X(41, GROUP_ACCEPT, group_accept)  \
    X(42, GROUP_COMMIT, group_commit)  \
    X(43, GROUP_READY, group_word)     \
    X(44, GROUP_FAILED, group_word)    \
    X(45, GROUP_END, group_word)       \
    X(46, GROUP_ENDED, group_word)      \
    X(47, BROADCAST, group_broadcast)  \
    X(48, BROADCAST_WORD, broadcast_word) \
    X(50, PULL_CREDIT, pull_credit)

enum rdt_peer_message {
#define X(number, name, message) RDT_PEER_##name = (number),
    RDT_PEER_MESSAGE_MAP(X)
#undef X
};

#endif
