/* The transport "ucx": what its files share.
 *
 * Owns its engines. An engine is a UCX context and worker with a thread, a listener and connections of its
 * own; there are as many as settings.threads says, because one core cannot move the bytes of a fast network,
 * and engines know nothing of each other. To the core a peer node is one connection (struct peer); it
 * consists of one connection (struct conn) in each engine that both nodes have, and chunks are dealt out over
 * them by their numbers.
 *
 * Refuses: peers that do not show the token of an offer first, or show one again; more than MAX_STRANGERS
 * endpoints that have not greeted, of which the oldest makes room (link.c); lanes that are too slow, where
 * on_slow = refuse; a chunk of another length than the one posted for it. A chunk that nothing is posted for is
 * dropped. Reads are offered only over lanes that can read remote memory (read.c).
 *
 * Threads. The core's loop thread posts, cancels, connects and disconnects. An engine's data thread owns the
 * UCX worker and everything that touches an endpoint. They meet in the lists and fields marked [lock], under
 * engine->lock. Fields marked [data] belong to the data thread; all others are constant after creation. The
 * lock is never held across a call into UCX or the host.
 *
 * Files, the highest first. A file calls only files below it; where a lower file needs a higher one, it
 * calls through a table that it was given at start (struct link_events):
 *
 *     ucx         the table of operations
 *     peer        one peer node over all engines
 *     engine      an engine's life
 *     thread      the loop of a data thread
 *     conn        one peer node in one engine
 *     chunk       sends and receives chunks
 *     link        endpoints: opened, greeted, closed
 *     read        registrations, keys and one-sided reads
 *     op          operations: posted, found, cancelled, ended
 *     schedule    waking the data thread, and message handlers
 *     config      settings
 *     lanes       asks UCX for the lanes of an endpoint, and judges them
 *     slow memory wire    rules about lanes and memory types; formats. They know nothing of UCX endpoints
 */
#ifndef BACKENDS_UCX_UCX_H
#define BACKENDS_UCX_UCX_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

#include "backends/rdt_backend.h"
#include "backends/common/ring.h"
#include "proto/strangers.h"
#include "backends/ucx/memory.h"
#include "backends/ucx/slow.h"
#include "backends/ucx/wire.h"

struct peer;

#define RECV_BUCKETS 256
#define LINK_BUCKETS 64
#define LANES_BYTES 160
#define MAX_STRANGERS 128u          /* accepted endpoints that have not greeted */
#define MAX_STRANGERS_OF_SOURCE 96u /* ... from one address: a node opens one for each of its engines */
#define MAX_WARNED 64u              /* nodes with slow lanes that are remembered; see lanes.c */

enum on_slow { SLOW_WARN, SLOW_REFUSE, SLOW_IGNORE };

enum one_sided { ONE_SIDED_AUTO, ONE_SIDED_NEVER, ONE_SIDED_ALWAYS };

struct settings {
    char listen[INET6_ADDRSTRLEN];
    uint16_t port;
    char tls[256];
    char interfaces[256];
    char least_lane[128];
    enum on_slow on_slow;
    enum one_sided one_sided;
    bool reads; /* what comes of it and of tls: the context can read one-sided */
    uint64_t eager_bytes; /* chunks up to this size travel with their announcement */
    unsigned spin_polls;  /* empty polls before the data thread sleeps while something is outstanding */
    unsigned threads;     /* engines */
    char rails[8];        /* networks that one message is spread over; "": as UCX likes */
};

/* ---- operations ---- */

/* The table in op.c has exactly these moves:
 *
 *   QUEUED    it stands in conn->sends or in a bucket of conn->recvs
 *   RUNNING   UCX has it, and cannot give it back
 *   ENDING    UCX has never had it; the data thread ends it
 *   ENDED     op_done is called, and it is freed
 *
 *   post            handed to UCX, or its bytes come in             UCX has ended it
 *  ------> QUEUED --------------------------------------> RUNNING ------------------> ENDED
 *             |                                                                         ^
 *             | cancel, disconnect, on_slow = refuse              data thread           |
 *             `---------------------------------------> ENDING -------------------------'
 */
enum op_state { OP_QUEUED, OP_RUNNING, OP_ENDING, OP_ENDED };
enum op_kind { OP_SEND, OP_RECV, OP_READ };

/* Memory that peers may read. */
struct registration {
    ucp_mem_h memh;
    void *addr;
    uint64_t bytes;
};

/* One posted operation. op->priv[0] leads here until it has ended. */
struct operation {
    struct ring ring; /* [lock] QUEUED: in conn->sends or a bucket of conn->recvs; ENDING: in engine->ending; otherwise alone */
    struct rdt_op *op;
    struct conn *conn;
    enum op_state state; /* [lock] */
    enum op_kind kind;
    ucp_rkey_h rkey;           /* RUNNING reads */
    struct data_header header; /* UCX reads it until the send ends */
};

/* ---- connections and links ---- */

/* One peer node, in one engine. Bytes to the peer go over `out`, the link that we opened; its bytes to us
 * come over `in`, which it opened. */
struct conn {
    struct ring ring;   /* [lock] in engine->conns */
    struct ring active; /* [lock] in engine->active: the data thread must look at it */
    struct engine *engine;
    struct peer *peer;
    uint8_t token[TOKEN_BYTES];           /* what the peer must show us first */
    bool offered, token_used;             /* [lock] */
    bool connected;                       /* [lock] peer_* are set */
    struct sockaddr_storage peer_address; /* [lock] */
    uint8_t peer_token[TOKEN_BYTES];      /* [lock] */
    bool closing;                         /* [lock] disconnect was called */
    uint8_t peer_uuid[16];
    char lanes[LANES_BYTES];              /* [lock] of the link that became READY last, and what is wrong; "": of none yet */
    bool readable;                        /* [lock] they read the peer's memory */
    bool refused;                         /* [lock] they are too slow: nothing moves on it */
    struct ring sends;                    /* [lock] QUEUED sends and reads, in order */
    struct ring recvs[RECV_BUCKETS];      /* [lock] QUEUED receives, by transfer and chunk */
    unsigned posted;                      /* [lock] operations that have not ended */
    bool closed_links;                    /* [data] disconnect has reached the links */
    bool failed;                          /* [data] conn_failed was called */
    struct link *in, *out;                /* [data] */
};

/*                     HELLO or WELCOME          disconnect, or the engine closes
 *   opened ---> FRESH ------------------> READY ---------------------.
 *                 | |                       | error                  |
 *                 | |  error, malformed     v                        v
 *                 | `-------------------> FAILED ----------------> CLOSING ---> freed
 *                 |                                                  ^
 *                 `--------------------------------------------------'
 *                   only if it is incoming: see link_abandon
 */
enum link_state { LINK_FRESH, LINK_READY, LINK_FAILED, LINK_CLOSING };

enum { AM_HELLO = 1, AM_WELCOME = 2, AM_DATA = 3 };

/* What link.c reports to the connections above it. Data thread. */
struct link_events {
    /* The connection whose offer has this token, which is now used up. NULL: there is none. */
    struct conn *(*take_token)(struct engine *engine, const uint8_t token[TOKEN_BYTES], const uint8_t dialler[TOKEN_BYTES]);
    void (*on_ready)(struct conn *conn, struct link *link); /* both ends have greeted */
    void (*on_failed)(struct conn *conn, enum rdt_status status, const char *msg);
    void (*on_gone)(struct conn *conn, struct link *link); /* it is closed, and freed when this returns */
};

/* One endpoint. All of it is the data thread's. */
struct link {
    struct ring ring;  /* in a bucket of engine->links, until CLOSING */
    struct ring dying; /* in engine->dying: to be looked at after progress, not inside a callback of UCX */
    struct engine *engine;
    struct conn *conn; /* NULL: nobody knows yet whose it is, or it was let go */
    struct stranger stranger; /* in engine->strangers: it is incoming and has not greeted */
    bool evicted;             /* it was a stranger, and made room for others */
    ucp_ep_h ep;
    enum link_state state;
    bool incoming;
    bool copies;          /* READY: all of its lanes copy what is sent */
    bool closed;          /* UCX has ended the close */
    unsigned requests;    /* greetings that UCX still reads */
    uint64_t deadline_ns; /* incoming and FRESH: until when it must have said HELLO */
    ucs_status_t error;
    const char *fault;        /* what it did wrong, if that is why it is FAILED; static text */
    struct greeting greeting; /* the one that we send */
};

/* ---- engines ---- */

struct engine {
    struct rdt_host host; /* the core's, except that connections report to peer.c */
    struct ucx_memory memory; /* what its UCX says of itself */
    struct settings settings;
    unsigned index;
    pthread_t thread;
    pthread_mutex_t lock;
    struct ring conns, active, ending; /* [lock] */
    bool stopping;                     /* [lock] */
    bool asleep;                       /* [lock] the data thread needs a signal to look at the lists */
    unsigned posted;                   /* [lock] operations that have not ended, of all connections */

    const struct link_events *link_events; /* given to links_listen */
    ucp_context_h context;
    ucp_worker_h worker;             /* [data], but for ucp_worker_signal */
    uint64_t gave_way_ns;            /* [data] when others last could have its core */
    ucp_datatype_t pieces;           /* [data] what is sent; 0: none yet */
    ucp_listener_h listener;         /* [data] */
    struct sockaddr_storage address; /* what offers say; constant after open */

    struct ring links[LINK_BUCKETS]; /* [data] by endpoint */
    struct ring dying;               /* [data] */
    ucp_conn_request_h requests[32]; /* [data] peers that knocked */
    unsigned n_requests;             /* [data] */
    unsigned n_links;                /* [data] */
    struct strangers strangers;      /* [data] */
    uint64_t quiet_until_ns;         /* [data] refused strangers are logged at debug level until then */
    uint8_t warned[MAX_WARNED][16];  /* [data] the latest peers whose slow lanes the log knows */
    unsigned n_warned;               /* [data] how many were logged in all */
};

/* ---- the transport ---- */

struct transport {
    struct rdt_host host;
    struct settings settings;
    char version[64];
    unsigned n;
    struct engine *engines[MAX_ENGINES];
};

/* One peer node, as the core sees it. The loop thread's, but for what is atomic or marked. */
struct peer {
    struct transport *transport;
    void *ctx;                    /* the core's */
    uint8_t token[TOKEN_BYTES];   /* what it must show us first */
    uint8_t dialler[TOKEN_BYTES]; /* what we show beside its own: who we are, at each of its engines */
    unsigned n;                   /* engines that both nodes have; 0: not connected */
    pthread_mutex_t lock;
    bool claimed;                    /* [peer->lock] somebody has shown the token ... */
    uint8_t claimed_by[TOKEN_BYTES]; /* [peer->lock] ... and it is this one */
    atomic_bool failed;
    atomic_uint open; /* conns that have not closed */
    struct conn *conns[MAX_ENGINES];
};

/* peer.c */
enum rdt_status peer_create(struct transport *transport, const uint8_t uuid[16], void *ctx, struct peer **peer_p,
                            struct rdt_error *err);
void peer_destroy(struct peer *peer);
size_t peer_offer(struct peer *peer, uint8_t blob[RDT_OFFER_MAX_BYTES]);
enum rdt_status peer_connect(struct peer *peer, const void *blob, size_t bytes, struct rdt_error *err);
void peer_disconnect(struct peer *peer);
uint32_t peer_sides(const struct peer *peer, const char *memory_kind);
enum rdt_status peer_describe(const struct peer *peer, char *text_p, size_t size);
enum rdt_status peer_post(struct peer *peer, struct rdt_op *op, enum op_kind kind, struct rdt_error *err);
void peer_cancel(const struct peer *peer, struct rdt_op *op);
struct rdt_host peer_host(const struct rdt_host *host); /* what an engine gets for it */

/* config.c: what the user wants, checked. */
enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err);
void settings_version(const struct settings *settings, char *version_p,
                      size_t size); /* equal for two ends that understand each other */
enum rdt_status settings_context(const struct settings *settings, ucp_context_h *context_p, struct rdt_error *err);

/* engine.c */
enum rdt_status engine_create(const struct rdt_host *host, const struct settings *settings, unsigned index,
                              struct engine **engine_p, struct rdt_error *err);
void engine_destroy(struct engine *engine); /* its connections are */

/* schedule.c */
void thread_wake(struct engine *engine); /* any thread; the lock is held */
enum rdt_status thread_handle(struct engine *engine, unsigned id, ucp_am_recv_callback_t callback, unsigned flags,
                              struct rdt_error *err);
void thread_give_way(struct engine *engine); /* data thread, after each piece of work: lets others have its core */
uint64_t thread_now_ns(void);

/* thread.c: the data thread. */
enum rdt_status thread_start(struct engine *engine, struct rdt_error *err);
void thread_stop(struct engine *engine); /* asks it to end; thread_join waits for the end */
void thread_join(struct engine *engine);

/* link.c: endpoints; data thread only. */
enum rdt_status links_listen(struct engine *engine, const struct link_events *events, struct rdt_error *err);
void links_unlisten(struct engine *engine);
struct link *link_open(struct conn *conn); /* NULL: UCX cannot open an endpoint */
void link_close(struct link *link);        /* ends in on_gone if it has a conn */
bool link_abandon(struct link *link);      /* true: it closes on its own, and is no link of its conn any more */
void link_fail(struct link *link, ucs_status_t error, const char *fault);
struct link *link_find(struct engine *engine, ucp_ep_h ep);
void links_settle(struct engine *engine); /* after progress: accept, fail and free what UCX's callbacks left */
void links_expire(struct engine *engine, bool all);
void links_free(struct engine *engine); /* the worker is gone: what did not close in time */

/* lanes.c; data thread only. */
bool ucx_is_at_least(unsigned major, unsigned minor);
void lanes_of(ucp_ep_h ep, char *list_p, size_t size); /* "tcp/eth0, tcp/eth1"; "" if UCX does not say */
/* True: they are too slow for the configuration, why_p says why, and the log knows. */
bool lanes_judge(struct engine *engine, const uint8_t peer_uuid[16], const char *lanes, char *why_p, size_t size);

/* conn.c */
enum rdt_status conn_create(struct engine *engine, const uint8_t peer_uuid[16], struct peer *peer,
                            struct conn **conn_p, struct rdt_error *err);
void conn_destroy(struct conn *conn);
void conn_offer(struct conn *conn); /* its token may be shown from now on */
enum rdt_status conn_connect(struct conn *conn, const struct sockaddr_storage *address, const uint8_t token[TOKEN_BYTES],
                             struct rdt_error *err);
void conn_disconnect(struct conn *conn);
uint32_t conn_sides(struct conn *conn);
enum rdt_status conn_describe(struct conn *conn, char *text_p, size_t size);
/* Data thread: */
extern const struct link_events conn_link_events;
void conns_run(struct engine *engine); /* does what the loop thread asked for */

/* op.c */
enum rdt_status op_post(struct conn *conn, struct rdt_op *op, enum op_kind kind, struct rdt_error *err);
void op_cancel(struct conn *conn, struct rdt_op *op);
void ops_end_queued(struct conn *conn); /* the lock is held: moves the QUEUED to engine->ending */
/* Data thread; both return an operation that is RUNNING now. */
struct operation *op_take_send(struct conn *conn); /* the lock is held; a send or a read. NULL: nothing is queued */
struct operation *op_take_recv(struct conn *conn, const struct data_header *header); /* NULL: none is posted */
void ops_report_ended(struct engine *engine);
void op_end(struct operation *operation, enum rdt_status status, const char *msg);
void op_end_ucs(struct operation *operation, ucs_status_t ucs);

/* chunk.c: data thread. */
enum rdt_status chunks_handle(struct engine *engine, struct rdt_error *err);
void chunks_fini(struct engine *engine); /* the worker is gone */
void chunks_send(struct conn *conn);     /* hands the queued sends and reads to UCX; conn->out is READY */

/* read.c: any thread, but for read_start. */
enum rdt_status read_register(struct engine *engine, void *addr, uint64_t bytes, ucs_memory_type_t memory,
                              struct registration **registration_p, struct rdt_error *err);
void read_unregister(struct engine *engine, struct registration *registration);
enum rdt_status read_pack_key(struct engine *engine, const struct registration *registration,
                              uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p, struct rdt_error *err);
void read_start(struct conn *conn, struct operation *operation); /* data thread; conn->out is READY */

#endif
