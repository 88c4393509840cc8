/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "stream": what its files share.
 *
 * The transport moves bytes over its own TCP connections, which are called lanes. A node that has something to send dials a
 * lane to the peer, and only the dialler sends chunks on it. A lane is encrypted by TLS 1.3 with a key from the peer's offer,
 * or unencrypted if both nodes trust the network.
 *
 * It owns its sockets, data threads, and the memory of lanes, connections and queued operations. An operation's memory
 * belongs to the core; a lane reads or writes it only while the operation is RUNNING or STOPPING.
 *
 * It refuses: memory that is not host memory; a peer that does not show the token of an offer, or shows a lane number twice;
 * more than MAX_STRANGERS accepted connections that have not greeted yet; more than MAX_LANES_IN lanes from one peer; and a
 * chunk whose length differs from that of its receive. A chunk for which no receive is posted is read and dropped.
 *
 * Threads. The core's loop thread posts, cancels, connects and disconnects. A few data threads own the lanes; each lane
 * belongs to one thread. The threads share the fields marked [lock], which transport->lock protects. A field marked [data]
 * belongs to the thread of its lane; all others are constant after creation. No thread holds the lock during a system call
 * that moves bytes, a call of OpenSSL, or a call to the host.
 *
 * Files, the highest first. A file calls only files below it; where a lower file needs a higher one, it calls through a
 * pointer that it was given at start (transport->find_key):
 *
 *     stream      the table of operations
 *     thread      the loops of the data threads
 *     listen      the listening socket: accepts lanes
 *     run         moves a lane through its states, from the dial to its end
 *     send receive    chunks on a lane that is READY
 *     conn        one peer node: secrets, lanes, disconnect
 *     op          operations: posts, hands them to lanes, cancels and ends them
 *     lane        a lane's memory and states
 *     schedule    the lists of work of the data threads, and waking them
 *     channel     reads and writes the bytes of a lane, without blocking
 *     tls         keys and settings of OpenSSL
 *     config wire     settings; the formats of offers, greetings, headers and trailers
 */
#ifndef BACKENDS_STREAM_STREAM_H
#define BACKENDS_STREAM_STREAM_H

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "backends/common/pieces.h"
#include "backends/common/ring.h"
#include "backends/common/threads.h"
#include "backends/rdt_backend.h"
#include "backends/stream/wire.h"
#include "proto/strangers.h"

#define RECV_BUCKETS 256
#define MAX_THREADS 16
#define MAX_LANES 64                     /* of settings.connections: to one peer, besides those that are LEAVING */
#define MAX_LANES_IN (2u * MAX_LANES)    /* from one peer: half of them may have left, and this node has not read their BYE */
#define MAX_STRANGERS 128u               /* accepted lanes that have not greeted yet */
#define MAX_STRANGERS_OF_SOURCE 96u      /* ... from one address: a node may open many lanes at once */
#define RECORD_BYTES 16384               /* largest payload of a TLS record */
#define PART_BYTES ((size_t)1 << 20)     /* largest number of bytes that one system call moves; see send.c */
#define MAX_PARTS 256u                   /* ... and in how many places of memory they lie */
#define GATHER_BYTES ((size_t)256 << 10) /* buffer for the TLS records that one system call sends; see channel.c */

struct settings {
    char listen[INET6_ADDRSTRLEN];
    uint16_t first_port, last_port; /* 0: any */
    unsigned threads, connections;
    unsigned dead_after_s;
    uint64_t rekey_bytes;
    bool plain; /* this end accepts unencrypted lanes */
};

/* ---- operations ---- */

/* The table in op.c has exactly these moves:
 *
 *   QUEUED    the operation stands in conn->sends or in a bucket of conn->recvs
 *   RUNNING   a lane moves its bytes
 *   STOPPING  it was cancelled; its lane stops using its memory, and completes the chunk without it
 *   ENDING    no lane has it; the home thread ends it
 *   ENDED     op_done has been called; the operation is freed
 *
 *   post             a lane takes it           all bytes are written or read, disconnect, failure
 *  ------> QUEUED -------------------> RUNNING ---------------------------------------------------> ENDED
 *             |                           |                                                        ^   ^
 *             |                           | cancel                  the lane's thread              |   |
 *             |                           `----------> STOPPING -----------------------------------'   |
 *             | cancel, disconnect                                  the home thread                    |
 *             `---------------------------------------> ENDING ----------------------------------------'
 */
enum op_state { OP_QUEUED, OP_RUNNING, OP_STOPPING, OP_ENDING, OP_ENDED };

/* One posted operation. op->priv[0] points to it until it has ended. */
struct operation {
    struct ring ring; /* [lock] QUEUED: in conn->sends or a bucket of conn->recvs; ENDING: in thread->ending; else in none */
    struct rdt_op *op;
    struct conn *conn;
    struct lane *lane;   /* [lock] RUNNING, STOPPING: the lane that moves it */
    enum op_state state; /* [lock] */
};

/* ---- connections ---- */

struct conn_peer { /* what the peer's offer said */
    bool known;    /* [lock] the rest is set */
    struct sockaddr_storage address;
    struct secrets secrets;
    bool tls; /* lanes to the peer use TLS */
};

/* One peer node. */
struct conn {
    struct ring ring;  /* [lock] in transport->conns */
    struct ring visit; /* [lock] in home->visits */
    struct transport *transport;
    struct thread *home; /* ends operations that no lane has, and reports that the connection is closed */
    void *ctx;           /* conn_ctx of the core */
    struct secrets ours;
    struct numbers used_numbers; /* [lock] numbers of the lanes that showed our token */
    bool offered;                /* [lock] */
    struct conn_peer peer;
    char description[80];            /* [lock] of the latest lane, for people; "": there was none yet */
    bool closing;                    /* [lock] disconnect was called */
    bool failed;                     /* [lock] conn_failed was called */
    uint32_t next_number;            /* [lock] of the next lane to the peer */
    unsigned n_out, n_in;            /* [lock] number of lanes to the peer, and from it */
    struct ring lanes;               /* [lock] all of them */
    struct ring idle;                /* [lock] lanes to the peer that are READY and have nothing to send */
    struct ring sends;               /* [lock] QUEUED sends, in order */
    struct ring recvs[RECV_BUCKETS]; /* [lock] QUEUED receives, by transfer and chunk */
    unsigned posted;                 /* [lock] number of operations that have not ended */
};

/* ---- lanes ---- */

/*  dialled:   NEW ---> DIALLING --.
 *                                 +-- TLS ---> SHAKING --.
 *                                 |                      +---> GREETING ---------> READY ---------------> LEAVING
 *                                 +-- unencrypted -------'     HELLO, WELCOME      BYE, after rekey_bytes
 *  accepted:  NEW ---> PEEKING ---'
 *
 *  From each state a lane may become GONE (failed, disconnected, evicted, or closed by the peer), after which it is freed.
 */
enum lane_state { LANE_NEW, LANE_DIALLING, LANE_PEEKING, LANE_SHAKING, LANE_GREETING, LANE_READY, LANE_LEAVING, LANE_GONE };

enum in_stage { IN_HEADER, IN_BYTES, IN_TRAILER };

struct lane_ready { /* what epoll said of its socket, until a call has found otherwise */
    bool readable, writable;
    bool hung_up; /* the end of the connection: no further edge will come */
};

struct lane_tls {
    SSL *ssl;                       /* NULL: unencrypted */
    bool in_kernel;                 /* the kernel encrypts what this process writes */
    uint8_t *gathered;              /* [GATHER_BYTES] TLS records to be sent, if this process encrypts them; else NULL */
    size_t gathered_n, gathered_at; /* bytes in it; how many of them are sent */
    uint8_t id[ID_BYTES];           /* accepted: the id of the offer whose key it used */
};

struct lane_greeting {
    uint32_t number; /* unique among the lanes that show the same token */
    bool sent;       /* our part of the greeting */
};

struct lane_end {
    const char *fault; /* why it failed, if not by a system call; static text */
    int error;         /* the errno with which it failed, or 0 */
    bool left;         /* it was LEAVING, so its end is no failure */
};

struct lane_chunk {              /* the chunk that it moves now */
    struct operation *operation; /* RUNNING or STOPPING on this lane; NULL: none, or it was ended early */
    bool sending;                /* a chunk is being sent */
    uint64_t bytes, at;          /* length of the chunk; bytes received, or sent including header and trailer */
    struct pieces memory;        /* of the operation, or none */
    struct header header;
    enum in_stage stage;
};

/* One TCP connection. */
struct lane {
    struct ring ring;         /* [lock] in conn->lanes */
    struct stranger stranger; /* [lock] in transport->strangers, while conn is NULL */
    struct ring idle;         /* [lock] in conn->idle */
    struct ring attention;    /* [lock] in thread->attention */
    struct ring timed;        /* [data] in thread->timed, while it has a deadline */
    struct ring runnable;     /* [data] in thread->runnable */
    struct transport *transport;
    struct thread *thread;
    struct conn *conn; /* [lock] when it is set; NULL: a stranger, whose connection is not known yet */
    bool incoming;
    bool evicted; /* [lock] a stranger that must close to make room for others */
    enum lane_state state;
    int fd;
    struct lane_ready ready;
    struct lane_tls tls;
    struct lane_greeting greeting;
    uint64_t deadline_ns;
    struct lane_end end;

    uint8_t
        small[HEADER_BYTES + TRAILER_BYTES + HELLO_BYTES]; /* greetings, and the headers and trailers that come in or go out */
    size_t small_n;

    struct lane_chunk chunk;
    uint64_t sent; /* bytes sent on this lane in all */
    bool counted;  /* [lock] conn->n_out or n_in includes it */
};

/* ---- the transport ---- */

struct thread {
    struct transport *transport;
    pthread_t id;
    int epoll, wake;
    bool asleep;                 /* [lock] it examines its lists only after thread_wake */
    struct ring attention;       /* [lock] lanes that have something new to do */
    struct ring visits;          /* [lock] conns that may be closed now */
    struct ring ending;          /* [lock] operations that end without a lane */
    struct ring timed, runnable; /* [data] lanes that have a deadline; lanes that can move bytes */
    uint8_t *scratch;            /* [data] SCRATCH_BYTES: receives the bytes of dropped chunks */
    uint8_t *staging;            /* [data] assembles a TLS record from several pieces */
    uint64_t yielded_ns;         /* [data] when it last called sched_yield */
    bool listener_paused;        /* [data] no descriptors are left: the listener is not watched until the next tick */
};
#define SCRATCH_BYTES ((size_t)65536)

struct transport {
    struct rdt_host host;
    struct settings settings;
    SSL_CTX *ssl_ctx;
    BIO_METHOD *gather; /* receives the records that OpenSSL writes */
    /* Copies the key of the offer with this id; it is conn_find_key. False: there is no such offer. Data threads, without the
     * lock. */
    bool (*find_key)(struct transport *transport, const uint8_t id[ID_BYTES], uint8_t key_p[KEY_BYTES]);
    pthread_mutex_t lock;
    struct ring conns;          /* [lock] */
    struct strangers strangers; /* [lock] */
    bool stopping;              /* [lock] the data threads end */
    unsigned next_thread;       /* [lock] for the next lane */
    int listener;
    struct sockaddr_storage address; /* where peers reach the listener; part of every offer */
    uint64_t quiet_until_ns;         /* [lock] refused strangers are logged at debug level until then */
    bool logged_kernel_tls;          /* [lock] the log has said at info level that the kernel encrypts */
    struct thread threads[MAX_THREADS];
};

/* config.c. INVALID: a value is malformed. UNSUPPORTED: the transport is switched off, or has no peers or no address. Only
 * inside open. */
enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err);

/* tls.c */
SSL_CTX *tls_create(struct rdt_error *err); /* NULL: UNSUPPORTED */
SSL *tls_start(struct lane *lane);          /* NULL: no memory */
bool tls_has_key(const SSL *ssl);           /* after the handshake: whether it used the key of an offer */
const char *tls_kernel_state(void);         /* for the log: whether the kernel or the daemon encrypts */

/* channel.c: reads and writes the bytes of a lane, without blocking. The lane's thread. The functions that return ssize_t
 * return a number of bytes or one of these. */
enum {
    CHANNEL_AGAIN = 0,   /* the socket is not ready */
    CHANNEL_END = -1,    /* the peer has closed its end */
    CHANNEL_BROKEN = -2, /* the lane has failed; its fault or error says why */
};
enum rdt_status channel_shake(struct lane *lane); /* the TLS handshake: RDT_AGAIN, RDT_OK, RDT_PROTOCOL */

/* Reads into iov[0], and what follows into the others if it has arrived already (never with TLS). */
ssize_t channel_read(struct lane *lane, const struct iovec *iov, unsigned n);
ssize_t channel_write(struct lane *lane, const struct iovec *iov, unsigned n);
ssize_t channel_flush(struct lane *lane); /* sends the gathered records; CHANNEL_AGAIN: some are left; 1: none is */
BIO_METHOD *channel_gather_method(void);  /* NULL: no memory */
bool channel_gather(struct lane *lane);   /* from now on gathers the lane's records; false: no memory */

/* schedule.c. The caller of the first four holds the lock; the others are called by the lane's thread. */
void thread_wake(struct thread *thread);
void thread_attend(struct lane *lane);                   /* has the lane's thread call lane_attend */
void thread_visit(struct conn *conn);                    /* has the home thread check whether the connection has ended */
struct thread *thread_next(struct transport *transport); /* returns the thread for the next lane */
bool thread_watch(struct lane *lane);                    /* adds the lane's socket to epoll; false: errno says why not */
void thread_run_again(struct lane *lane);                /* calls lane_run in the next round */
void thread_yield(struct thread *thread);                /* after each piece of work: yields the processor now and then */

/* lane.c: the lane's thread, unless a comment says otherwise. */
void lane_socket(int fd, const struct settings *settings); /* sets the options of a lane's socket; any thread */
struct lane *lane_create(struct transport *transport, struct conn *conn, int fd); /* with the lock; NULL: no memory */
void lane_free(struct lane *lane);
void lane_fail(struct lane *lane, const char *fault, int error); /* the lane is GONE, and freed when lane_run returns */
void lane_set_state(struct lane *lane, enum lane_state to);
void lane_leave(struct lane *lane);                     /* LEAVING: all is sent, and it ends when the other end closes */
void lane_set_deadline(struct lane *lane, uint64_t ns); /* in ns nanoseconds; 0: it has none any more */

/* thread.c */
enum rdt_status threads_start(struct transport *transport, struct rdt_error *err);
void threads_stop(struct transport *transport);

/* listen.c */
enum rdt_status listen_open(struct transport *transport, struct rdt_error *err);
void listen_accept(struct transport *transport, struct thread *thread);

/* run.c: the lane's thread. */
void lane_run(struct lane *lane);    /* moves the lane on as far as it goes; may free it */
void lane_attend(struct lane *lane); /* acts on a changed field that is marked [lock]; may free the lane */

/* send.c, receive.c: the lane's thread. Each call moves a limited number of bytes, so that lanes take turns. */
void send_run(struct lane *lane);
void receive_run(struct lane *lane);

/* conn.c. Loop thread: */
enum rdt_status conn_create(struct transport *transport, void *ctx, struct conn **conn_p, struct rdt_error *err);
void conn_destroy(struct conn *conn);
enum rdt_status conn_offer(struct conn *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p);
enum rdt_status conn_connect(struct conn *conn, const void *blob, size_t bytes, struct rdt_error *err);
void conn_disconnect(struct conn *conn);
void conn_describe(struct conn *conn, char *text_p, size_t size); /* "": it is not known yet */
/* Data threads: */
bool conn_find_key(struct transport *transport, const uint8_t id[ID_BYTES], uint8_t key_p[KEY_BYTES]);
const char *conn_take_lane(struct lane *lane, const uint8_t id[ID_BYTES],
                           const uint8_t token[TOKEN_BYTES]); /* makes a stranger the connection's lane; NULL, or why not */
void conn_lane_leaves(struct lane *lane);                     /* the lane sends nothing more, and another one may be dialled */
void conn_fail(struct conn *conn, enum rdt_status status, const char *msg);
void conns_close(struct thread *thread); /* reports the connections that have ended */

/* op.c. Loop thread: */
enum rdt_status op_post(struct conn *conn, struct rdt_op *op, bool is_send, struct rdt_error *err);
void op_cancel(struct conn *conn, struct rdt_op *op);
/* Any thread, with the lock: */
void ops_start_sends(struct conn *conn); /* wakes or dials a lane for queued sends */
void ops_end_queued(struct conn *conn);  /* moves the QUEUED operations to home->ending */
/* Data threads: */
struct operation *op_take_send(struct lane *lane); /* NULL: none is queued, and the lane is idle now */
struct operation *op_take_recv(struct conn *conn, struct lane *lane, const struct header *header);
void op_end(struct operation *operation, enum rdt_status status, const char *msg);
void ops_report_ended(struct thread *thread);

#endif
