/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "ucx": what its files share.
 *
 * The transport owns one engine: a UCX context and worker with a thread, a listener and connections. To the core a peer node is
 * one connection (struct conn).
 *
 * It refuses: a peer that does not show the token of an offer first, or shows one again; more than MAX_STRANGERS endpoints
 * that have not greeted, of which one makes room (link.c); and a chunk whose length differs from that of its receive. A chunk
 * for which no receive is posted is dropped. One-sided reads are offered only over lanes that can read remote memory
 * (read.c).
 *
 * Threads. The core's loop thread posts, cancels, connects and disconnects. The data thread owns the UCX worker and
 * everything that touches an endpoint. The two share the lists and fields marked [lock], which engine->lock protects. A field
 * marked [data] belongs to the data thread; all others are constant after creation. No thread holds the lock during a call to
 * UCX or the host.
 *
 * Files, the highest first. A file calls only files below it; where a lower file needs a higher one, it calls through a table
 * that it was given at start (struct link_events):
 *
 *     ucx         the table of operations
 *     engine      creates and destroys the engine; the loop of the data thread
 *     conn        one peer node
 *     chunk       sends and receives chunks
 *     link        endpoints: opens them, exchanges greetings, closes them
 *     read        registrations, keys and one-sided reads
 *     op          operations: posts, finds, cancels and ends them; wakes the data thread
 *     config      settings
 *     lanes       asks UCX for the lanes of an endpoint
 *     memory wire rules about memory types, and formats; they use no UCX endpoints
 */
#ifndef BACKENDS_UCX_UCX_H
#define BACKENDS_UCX_UCX_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

#include "backends/common/ring.h"
#include "backends/common/threads.h"
#include "backends/rdt_backend.h"
#include "backends/ucx/memory.h"
#include "backends/ucx/wire.h"
#include "proto/strangers.h"

#define RECV_BUCKETS 256
#define LINK_BUCKETS 64
#define LANES_BYTES 160
#define MAX_STRANGERS 128u          /* accepted endpoints that have not greeted yet */
#define MAX_STRANGERS_OF_SOURCE 96u /* ... from one address: nodes may share one */

enum one_sided { ONE_SIDED_AUTO, ONE_SIDED_NEVER, ONE_SIDED_ALWAYS };

struct settings {
    char listen[INET6_ADDRSTRLEN];
    bool guessed; /* `listen` is the first address of this node: it may be on a network of which other nodes are not */
    uint16_t port;
    char tls[256];
    char interfaces[256];
    enum one_sided one_sided;
    bool reads;           /* follows from one_sided and tls: the context can read one-sided */
    uint64_t slice_bytes; /* memory is registered in slices of so many bytes */
    unsigned spin_polls;  /* empty polls before the data thread sleeps while something is outstanding */
    char rails[8];        /* number of networks over which UCX spreads one message; "": UCX decides */
};

/* ---- operations ---- */

/* The table in op.c has exactly these moves:
 *
 *   QUEUED    the operation stands in conn->sends or in a bucket of conn->recvs
 *   RUNNING   UCX has it, and cannot cancel it
 *   ENDING    UCX has never had it; the data thread ends it
 *   ENDED     op_done has been called; the operation is freed
 *
 *   post            handed to UCX, or its bytes arrive              UCX has ended it
 *  ------> QUEUED --------------------------------------> RUNNING ------------------> ENDED
 *             |                                                                         ^
 *             | cancel, disconnect                                data thread           |
 *             `---------------------------------------> ENDING -------------------------'
 */
enum op_state { OP_QUEUED, OP_RUNNING, OP_ENDING, OP_ENDED };
enum op_kind { OP_SEND, OP_RECV, OP_READ };

/* Memory that peers may read, and that reads may go to. */
struct registration {
    void *addr;
    uint64_t bytes;
    uint64_t slice_bytes; /* of each slice but the last, which has the rest */
    uint32_t n;           /* slices, at most WIRE_MAX_SLICES */
    ucp_mem_h slices[];   /* [n] */
};

/* One posted operation. op->priv[0] points to it until it has ended. */
struct operation {
    struct ring ring; /* [lock] QUEUED: in conn->sends or a bucket of conn->recvs; ENDING: in engine->ending; else in none */
    struct rdt_op *op;
    struct conn *conn;
    enum op_state state; /* [lock] */
    enum op_kind kind;
    struct data_header header; /* UCX reads it until the send ends */
    unsigned reads;            /* [data] of UCX that have not ended; a read has several if it crosses slices */
    ucs_status_t read_status;  /* [data] the first error of one */
};

/* ---- connections and links ---- */

struct conn_token {
    uint8_t bytes[TOKEN_BYTES]; /* the peer must show it in its HELLO */
    bool offered, used;         /* [lock] */
};

struct conn_peer {
    bool known; /* the rest is set */
    struct sockaddr_storage address;
    uint8_t token[TOKEN_BYTES];
};

/* Bytes to the peer go over `out`, the link that this node opened; bytes from the peer come over `in`, which the peer
 * opened. */
struct conn_links {
    struct link *in, *out;
    bool closed; /* disconnect has closed them */
};

/* One peer node. */
struct conn {
    struct ring ring;   /* [lock] in engine->conns */
    struct ring active; /* [lock] in engine->active: the data thread has something to do for it */
    struct engine *engine;
    void *ctx; /* conn_ctx of the core */
    struct conn_token token;
    struct conn_peer peer;           /* [lock] */
    bool closing;                    /* [lock] disconnect was called */
    char lanes[LANES_BYTES];         /* [lock] lanes of the link that became READY last; "": none yet */
    bool readable;                   /* [lock] the lanes can read the peer's memory */
    struct ring sends;               /* [lock] QUEUED sends and reads, in order */
    struct ring recvs[RECV_BUCKETS]; /* [lock] QUEUED receives, by transfer and chunk */
    unsigned posted;                 /* [lock] number of operations that have not ended */
    bool failed;                     /* [data] conn_failed was called */
    struct conn_links links;         /* [data] */
};

/*                     HELLO or WELCOME          disconnect, or the engine closes
 *   opened ---> FRESH ------------------> READY ---------------------.
 *                 | |                       | error                  |
 *                 | |  error, malformed     v                        v
 *                 | `-------------------> FAILED ----------------> CLOSING ---> freed
 *                 |                                                  ^
 *                 `--------------------------------------------------'
 *                   only if the link is incoming: see link_abandon
 */
enum link_state { LINK_FRESH, LINK_READY, LINK_FAILED, LINK_CLOSING };

enum { AM_HELLO = 1, AM_WELCOME = 2, AM_DATA = 3 };

/* What link.c reports to the connections above it. Data thread. */
struct link_events {
    /* Returns the connection whose offer has this token, and marks the token as used. NULL: there is none. */
    struct conn *(*take_token)(struct engine *engine, const uint8_t token[TOKEN_BYTES]);
    void (*on_ready)(struct conn *conn, struct link *link); /* both ends have greeted */
    void (*on_failed)(struct conn *conn, enum rdt_status status, const char *msg);
    bool (*on_late)(struct conn *conn); /* the other end has not greeted in time. true: nothing waits for it, the link stays */
    void (*on_gone)(struct conn *conn, struct link *link); /* the link is closed, and freed when this returns */
};

/* One endpoint. All fields belong to the data thread. */
struct link {
    struct ring ring;  /* in a bucket of engine->links, until CLOSING */
    struct ring dying; /* in engine->dying: to be handled after progress, not inside a callback of UCX */
    struct engine *engine;
    struct conn *conn;        /* NULL: it has not greeted yet, or it was abandoned */
    struct stranger stranger; /* in engine->strangers, while it is incoming and has not greeted */
    bool evicted;             /* it was a stranger, and is closed to make room for others */
    ucp_ep_h ep;
    enum link_state state;
    bool incoming;
    bool closed;          /* UCX has completed the close */
    unsigned requests;    /* number of greetings that UCX still reads */
    uint64_t deadline_ns; /* FRESH: when the other end's HELLO or WELCOME must have arrived */
    ucs_status_t error;
    const char *fault;        /* which rule the peer broke, if that is why the link is FAILED; static text */
    struct greeting greeting; /* the one that this end sends */
};

/* ---- the engine ---- */

struct engine {
    struct rdt_host host;
    struct ucx_memory memory; /* the memory types that its UCX supports */
    struct settings settings;
    pthread_t thread;
    pthread_mutex_t lock;
    struct ring conns, active, ending; /* [lock] */
    bool stopping;                     /* [lock] */
    bool asleep;                       /* [lock] the data thread examines its lists only after a signal */
    unsigned posted;                   /* [lock] number of operations that have not ended, of all connections */

    const struct link_events *link_events; /* given to links_listen */
    ucp_context_h context;
    ucp_worker_h worker;             /* [data], except for ucp_worker_signal */
    ucp_listener_h listener;         /* [data] */
    struct sockaddr_storage address; /* goes into offers; constant after open */

    struct ring links[LINK_BUCKETS]; /* [data] by endpoint */
    struct ring dying;               /* [data] */
    ucp_conn_request_h *requests;    /* [data] n_requests connections to be accepted, with room for max_requests */
    unsigned n_requests;             /* [data] */
    unsigned max_requests;           /* [data] */
    unsigned n_links;                /* [data] */
    struct strangers strangers;      /* [data] */
    uint64_t quiet_until_ns;         /* [data] refused strangers are logged at debug level until then */
};

/* ---- the transport ---- */

struct transport {
    struct rdt_host host;
    struct settings settings;
    char version[64];
    char why_not_cuda[160];
    struct engine *engine;
};

/* Returns whether the module "cuda" lies beside the UCX that is loaded, or in UCX_MODULE_DIR. */
bool ucx_has_cuda_module(void);

/* config.c: only inside open. UNSUPPORTED: the network is not trusted, or there are no peers or no address, or UCX finds no
 * transport. INVALID: a value is malformed. */
enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err);
/* The speed of the transport as it is configured. Over TCP alone it is less than that of `stream`, which moves bytes with
 * several threads. Also before open. */
uint32_t settings_speed(const struct rdt_host *host);
enum rdt_status settings_context(const struct settings *settings, ucp_context_h *context_p, struct rdt_error *err);

/* Writes a text that is equal for two ends that can connect. */
void settings_version(const struct settings *settings, char *version_p, size_t size);

/* engine.c */
enum rdt_status engine_create(const struct rdt_host *host, const struct settings *settings, struct engine **engine_p,
                              struct rdt_error *err);
void engine_destroy(struct engine *engine); /* its connections have been destroyed */

/* link.c: endpoints; data thread only. */
enum rdt_status links_handle(struct engine *engine, unsigned id, ucp_am_recv_callback_t callback, unsigned flags,
                             struct rdt_error *err); /* sets the worker's handler for a kind of message */
enum rdt_status links_listen(struct engine *engine, const struct link_events *events, struct rdt_error *err);
void links_unlisten(struct engine *engine);
struct link *link_open(struct conn *conn); /* NULL: UCX cannot open an endpoint */
void link_close(struct link *link);        /* on_gone follows if the link has a conn */
bool link_abandon(struct link *link);      /* true: it closes by itself, and does not belong to its conn any more */
void link_fail(struct link *link, ucs_status_t error, const char *fault);
struct link *link_find(struct engine *engine, ucp_ep_h ep);
void links_accept(struct engine *engine);           /* before progress: accepts connections */
void links_settle(struct engine *engine);           /* after progress: fails and frees the links that were marked meanwhile */
void links_expire(struct engine *engine, bool all); /* fails strangers that are too late; with `all`, closes every link */
void links_free(struct engine *engine);             /* the worker is gone: frees the links that did not close in time */

/* lanes.c; data thread only. */
bool ucx_is_at_least(unsigned major, unsigned minor);
void lanes_of(ucp_ep_h ep, char *list_p, size_t size); /* "tcp/eth0, tcp/eth1"; "" if UCX does not say */

/* Returns whether the list has a lane of one of the families, which end with NULL: "rc" stands for rc_verbs and rc_mlx5. */
bool lanes_have(const char *list, const char *const *families);

/* conn.c. Loop thread: */
enum rdt_status conn_create(struct engine *engine, void *ctx, struct conn **conn_p, struct rdt_error *err);
void conn_destroy(struct conn *conn);
/* Accepts the connection's token from now on. UNSUPPORTED: that node may not reach the address at which this one listens. */
enum rdt_status conn_offer(struct conn *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err);
enum rdt_status conn_connect(struct conn *conn, const void *blob, size_t bytes, struct rdt_error *err);
void conn_disconnect(struct conn *conn);
uint32_t conn_sides(struct conn *conn, const char *memory_kind);
enum rdt_status conn_describe(struct conn *conn, char *text_p, size_t size);
/* Data thread: */
extern const struct link_events conn_link_events;
void conns_run(struct engine *engine); /* does what the loop thread has asked for */

/* op.c. Loop thread: */
enum rdt_status op_post(struct conn *conn, struct rdt_op *op, enum op_kind kind, struct rdt_error *err);
void op_cancel(struct conn *conn, struct rdt_op *op);
/* Any thread, with the lock: */
void thread_wake(struct engine *engine);
void ops_end_queued(struct conn *conn); /* moves the QUEUED operations to engine->ending */
/* Data thread. The first two return an operation that is RUNNING now. */
struct operation *op_take_send(struct conn *conn); /* with the lock; a send or a read. NULL: none is queued */
struct operation *op_take_recv(struct conn *conn, const struct data_header *header); /* NULL: none is posted */
void ops_report_ended(struct engine *engine);
void op_end(struct operation *operation, enum rdt_status status, const char *msg);
void op_end_ucs(struct operation *operation, ucs_status_t ucs);

/* chunk.c: data thread. */
enum rdt_status chunks_handle(struct engine *engine, struct rdt_error *err);
void chunks_send(struct conn *conn); /* hands the queued sends and reads to UCX; conn->out is READY */

/* read.c: any thread, except for read_start. */
enum rdt_status read_register(struct engine *engine, void *addr, uint64_t bytes, ucs_memory_type_t memory,
                              struct registration **registration_p, struct rdt_error *err);
void read_unregister(struct engine *engine, struct registration *registration);
enum rdt_status read_pack_key(struct engine *engine, const struct registration *registration, uint8_t key[RDT_KEY_MAX_BYTES],
                              size_t *bytes_p, struct rdt_error *err);
void read_start(struct operation *operation); /* data thread; its conn->out is READY */

#endif
