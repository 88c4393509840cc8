/* The transport "stream": what its files share.
 *
 * Bytes travel over TCP connections of its own, called lanes here, each dialled by the end that has something to send, and used in
 * that direction only. A lane is TLS 1.3, keyed by a secret that came with the peer's offer; bare where both ends trust the network.
 *
 * Threads. The core's loop thread posts, cancels, connects and disconnects; a few data threads own the lanes, each lane belongs to
 * one. They meet in what is marked [lock], under transport->lock; what is marked [data] belongs to the lane's thread, the rest is
 * constant after creation. The lock is never held across a system call that moves bytes, OpenSSL, or a call to the host.
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

#include "backends/rdt_backend.h"
#include "backends/common/ring.h"
#include "backends/stream/wire.h"

#define RECV_BUCKETS 256
#define MAX_THREADS 16
#define MAX_LANES 64                  /* from one peer; to one: settings.connections */
#define MAX_STRANGERS 128u            /* connections that have not said who they are */
#define RECORD_BYTES 16384            /* of TLS, at most */
#define PIECE_BYTES ((size_t)1 << 20) /* that one system call moves, at most; see send.c */
#define GATHER_BYTES ((size_t)256 << 10) /* of records that one system call sends; see channel.c */

struct settings {
    char listen[INET6_ADDRSTRLEN];
    uint16_t first_port, last_port; /* 0: any */
    unsigned threads, connections;
    unsigned dead_after_s;
    uint64_t rekey_bytes;
    bool plain; /* bare connections are good enough for this end */
};

/* ---- operations ---- */

/*   post            a lane takes it        all bytes written, or read
 *  ------> QUEUED -----------------> RUNNING ----------------------> ended: op_done, then freed
 *             \                         \                              ^
 *              \ cancel, disconnect      \ cancel (its lane finishes   |
 *               \                         | the chunk without it),     |
 *                `-----> ENDING           | disconnect, failure        |
 *                            `------------`----------------------------'
 */
enum op_state { OP_QUEUED, OP_RUNNING, OP_ENDING };

/* One posted operation. op->priv[0] leads here until it has ended. */
struct operation {
    struct ring ring; /* [lock] in conn->sends, a bucket of conn->recvs or thread->ending; alone while RUNNING */
    struct rdt_op *op;
    struct conn *conn;
    struct lane *lane;   /* [lock] RUNNING: who moves it */
    enum op_state state; /* [lock] */
    bool cancelled;      /* [lock] RUNNING: its lane is to let go of it */
};

/* ---- connections ---- */

/* One peer node. */
struct conn {
    struct ring ring;  /* [lock] in transport->conns */
    struct ring visit; /* [lock] in home->visits */
    struct transport *transport;
    struct thread *home; /* ends what no lane has, and tells when it is closed */
    void *ctx;           /* the core's */
    struct secrets ours;
    struct numbers taken;    /* [lock] numbers of lanes that showed our token */
    bool offered, connected; /* [lock]; connected: peer_* are set */
    struct sockaddr_storage peer_address;
    struct secrets peers;
    char how[80];                    /* [lock] what the latest lane is; "": there was none yet */
    bool tls;                        /* what we dial with */
    bool closing;                    /* [lock] disconnect was called */
    bool failed;                     /* [lock] conn_failed was called */
    uint32_t next_number;            /* [lock] of a lane to the peer */
    unsigned n_out, n_in;            /* [lock] lanes to the peer, and from it */
    struct ring lanes;               /* [lock] all of them */
    struct ring idle;                /* [lock] those to the peer that are ready and have nothing to send */
    struct ring sends;               /* [lock] QUEUED sends, in order */
    struct ring recvs[RECV_BUCKETS]; /* [lock] QUEUED receives, by transfer and chunk */
    unsigned posted;                 /* [lock] operations that have not ended */
};

/* ---- lanes ---- */

/*  dialled:   NEW ---> DIALLING --.
 *                                  \   TLS       HELLO       WELCOME         BYE, after rekey_bytes
 *                                   >------> SHAKING ---> GREETING ---> READY ---> LEAVING
 *                                  /   bare: at once
 *  accepted:  NEW ---> PEEKING ---'
 *
 *  From each of them to GONE, after which the lane is freed.
 */
enum lane_state { LANE_NEW, LANE_DIALLING, LANE_PEEKING, LANE_SHAKING, LANE_GREETING, LANE_READY, LANE_LEAVING, LANE_GONE };

enum in_stage { IN_HEADER, IN_BYTES, IN_TRAILER };

/* One connection of TCP. */
struct lane {
    struct ring ring;      /* [lock] in conn->lanes, or in transport->strangers */
    struct ring idle;      /* [lock] in conn->idle */
    struct ring attention; /* [lock] in thread->attention */
    struct ring fresh;     /* [data] in thread->fresh: it has a deadline */
    struct ring runnable;  /* [data] in thread->runnable */
    struct transport *transport;
    struct thread *thread;
    struct conn *conn; /* [lock] to set; NULL: nobody knows yet whose it is */
    bool incoming;
    bool evicted; /* [lock] a stranger that has to make room */
    enum lane_state state;
    int fd;
    uint32_t number; /* of those that show the same token */
    uint64_t deadline_ns;
    const char *fault; /* why it failed, if not for errno; static text */
    int error;

    SSL *ssl;             /* NULL: bare */
    bool kernel_tls;      /* the kernel encrypts what is written */
    uint8_t *gathered;    /* [GATHER_BYTES] records that are to go out, where this process encrypts what is sent; else NULL */
    size_t gathered_n, gathered_at; /* how many bytes; how many of them are out */
    uint8_t id[ID_BYTES]; /* accepted, by TLS: whose key it has */
    bool readable, writable;
    bool hung_up; /* an edge told of the end: there will be no other */
    bool greeted; /* what we had to say is said */
    bool left;    /* it was LEAVING: its end is no failure */

    uint8_t small[HEADER_BYTES + TRAILER_BYTES + HELLO_BYTES]; /* greetings; headers and trailers as they come in */
    size_t small_n;

    struct operation *operation; /* RUNNING here; NULL: none, or it was let go of */
    bool sending;                /* a chunk is under way, out */
    uint64_t bytes, at;          /* the chunk's, in: how many have come; out: how far we are, header and trailer included */
    uint8_t *memory;             /* the operation's */
    struct header header;
    enum in_stage stage;
    uint64_t sent; /* over all */
    bool counted;  /* [lock] in conn->n_out or n_in */
};

/* ---- the transport ---- */

struct thread {
    struct transport *transport;
    pthread_t id;
    int epoll, wake;
    bool asleep;                 /* [lock] it must be woken to look at the lists */
    struct ring attention;       /* [lock] lanes that have something new to do */
    struct ring visits;          /* [lock] conns that may be closed now */
    struct ring ending;          /* [lock] operations that end without a lane */
    struct ring fresh, runnable; /* [data] */
    uint8_t *scratch;            /* [data] SCRATCH_BYTES: what nobody wants is read into it */
    uint8_t *staging;            /* [data] one record that is not all in one piece */
    uint64_t gave_way_ns;        /* [data] when others last could have its core */
    bool deaf;                   /* [data] there are no descriptors to accept with, for a while */
};
#define SCRATCH_BYTES ((size_t)65536)

struct transport {
    struct rdt_host host;
    struct settings settings;
    SSL_CTX *ssl_ctx;
    BIO_METHOD *gather; /* where OpenSSL writes records to */
    pthread_mutex_t lock;
    struct ring conns;     /* [lock] */
    struct ring strangers; /* [lock] oldest first */
    unsigned n_strangers;  /* [lock] */
    bool stopping;         /* [lock] */
    unsigned next_thread;  /* [lock] for the next lane */
    int listener;
    struct sockaddr_storage address; /* what offers say */
    uint64_t quiet_until_ns;         /* [lock] no stranger is logged before */
    bool told_kernel_tls;            /* [lock] */
    struct thread threads[MAX_THREADS];
};

/* config.c */
enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err);

/* tls.c */
SSL_CTX *tls_create(struct rdt_error *err); /* NULL: UNSUPPORTED */
SSL *tls_start(struct lane *lane);          /* NULL: no memory */
bool tls_has_key(const SSL *ssl);           /* after the handshake: it was by the secret */
const char *tls_kernel_state(void);         /* what is known of TLS in the kernel, before there is a connection */

/* channel.c: bytes in and out of a lane, without blocking. */
enum { CHANNEL_AGAIN = 0, CHANNEL_END = -1, CHANNEL_BROKEN = -2 }; /* the lane's fault or error says what broke it */
enum rdt_status channel_shake(struct lane *lane);                  /* RDT_AGAIN, RDT_OK, RDT_PROTOCOL */
/* Into `first`, and what comes after that into `then` if it is at hand (never with TLS). How many bytes, or one of the above. */
ssize_t channel_read(struct lane *lane, void *first, size_t first_n, void *then, size_t then_n);
ssize_t channel_write(struct lane *lane, const struct iovec *iov, unsigned n);
ssize_t channel_flush(struct lane *lane); /* CHANNEL_AGAIN: something is still to go out; 1: nothing is */
BIO_METHOD *channel_gather_method(void);  /* NULL: no memory */
bool channel_gather(struct lane *lane);   /* its records, from now on; false: no memory */

/* thread.c */
enum rdt_status threads_start(struct transport *transport, struct rdt_error *err);
void threads_stop(struct transport *transport);
void thread_wake(struct thread *thread);                 /* the lock is held */
void thread_attend(struct lane *lane);                   /* the lock is held */
struct thread *thread_next(struct transport *transport); /* the lock is held */
void thread_watch(struct lane *lane);                    /* its thread: the socket, once it has one */
void thread_run_again(struct lane *lane);                /* its thread */
void thread_give_way(struct thread *thread);             /* its thread, after each piece of work: others may have its core */
uint64_t thread_now_ns(void);

/* listen.c */
enum rdt_status listen_open(struct transport *transport, struct rdt_error *err);
void listen_accept(struct transport *transport, struct thread *thread);
void listen_socket(int fd, const struct settings *settings); /* what every lane's socket has set */

/* lane.c: the lane's thread, unless it says otherwise. */
struct lane *lane_create(struct transport *transport, struct conn *conn, int fd); /* the lock is held; NULL: no memory */
void lane_run(struct lane *lane);                                                 /* may free it */
void lane_attend(struct lane *lane); /* something marked [lock] has changed; may free it */
void lane_free(struct lane *lane);
void lane_fail(struct lane *lane, const char *fault, int error); /* it is GONE, and freed when lane_run returns */
void lane_set_state(struct lane *lane, enum lane_state to);
void lane_leave(struct lane *lane);                     /* what had to be said has been: it ends when the other end closes */
void lane_set_deadline(struct lane *lane, uint64_t ns); /* from now; 0: none any more */

/* send.c, receive.c; a budget of bytes makes lanes take turns. */
void send_run(struct lane *lane);
void receive_run(struct lane *lane);

/* conn.c */
enum rdt_status conn_create(struct transport *transport, void *ctx, struct conn **conn_p, struct rdt_error *err);
void conn_destroy(struct conn *conn);
enum rdt_status conn_offer(struct conn *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p);
enum rdt_status conn_connect(struct conn *conn, const void *blob, size_t bytes, struct rdt_error *err);
void conn_disconnect(struct conn *conn);
void conn_describe(struct conn *conn, char *text_p, size_t size); /* "": not known yet */
void conn_start_sends(struct conn *conn);                         /* the lock is held: has a lane take what is queued */
void conn_visit(struct conn *conn);                               /* the lock is held */
/* Data threads: */
bool conn_find_key(struct transport *transport, const uint8_t id[ID_BYTES], uint8_t key_p[KEY_BYTES]);
const char *conn_take_lane(struct lane *lane, const uint8_t id[ID_BYTES], const uint8_t token[TOKEN_BYTES]); /* NULL: it has */
void conn_lane_leaves(struct lane *lane); /* it sends nothing more */
void conn_fail(struct conn *conn, enum rdt_status status, const char *msg);
void conns_close(struct thread *thread);

/* op.c */
enum rdt_status op_post(struct conn *conn, struct rdt_op *op, bool is_send, struct rdt_error *err);
void op_cancel(struct conn *conn, struct rdt_op *op);
void ops_end_queued(struct conn *conn); /* the lock is held: moves the QUEUED to home->ending */
/* Data threads: */
struct operation *op_take_send(struct lane *lane); /* NULL: nothing is queued, and the lane is idle now */
struct operation *op_take_recv(struct conn *conn, struct lane *lane, const struct header *header);
void op_end(struct operation *operation, enum rdt_status status, const char *msg);
void ops_report_ended(struct thread *thread);

#endif
