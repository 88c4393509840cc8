/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "stream": what its files share.
 *
 * The transport moves bytes over its own TCP connections, which are called channels. A node that has something to send dials
 * a channel to the peer, and only the dialler sends chunks on it. Where it does not get through (a firewall, a port mapping),
 * the node that waits for the bytes dials a channel on which it takes chunks, so one of the two directions is enough:
 *
 *     receive is posted                       TAKE_AFTER_NS later, and no channel has come
 *     ------> WAITING -------------------------------------------------------------------> DIALLING, as one that takes
 *     send is posted    no answer, and nothing else to send on       the peer's channel
 *     ------> DIALLING ------------------------------------> WAITING ------------------> freed; the sends go by that one
 *                                                              | FAIL_AFTER_NS after the dial
 *                                                              `-----> the connection fails, and says which port is closed
 *
 * When a connection is made, each end dials a channel as a probe: it sends PROBE_BYTES that the peer drops, and leaves. So
 * what keeps the bytes out is known before anybody fetches (conn_trouble). A channel is encrypted by TLS 1.3 with a key from
 * the peer's offer, or unencrypted if both nodes trust the network.
 *
 * It owns its sockets, data threads, and the memory of channels, connections and queued operations. An operation's memory
 * belongs to the core; a channel reads or writes it only while the operation is RUNNING or STOPPING.
 *
 * It refuses: memory that is not host memory; a peer that does not show the token of an offer, or shows a channel number twice;
 * more than MAX_STRANGERS accepted connections that have not greeted yet; more than MAX_CHANNELS_IN channels from one peer; and
 * a chunk whose length differs from that of its receive. A chunk for which no receive is posted is read and dropped.
 *
 * Threads. The core's loop thread posts, cancels, connects and disconnects. A few data threads own the channels; each channel
 * belongs to one thread. The threads share the fields marked [lock], which transport->lock protects. A field marked [data]
 * belongs to the thread of its channel; all others are constant after creation. No thread holds the lock during a system call
 * that moves bytes, a call of OpenSSL, or a call to the host.
 *
 * Files, the highest first. A file calls only files below it; where a lower file needs a higher one, it calls through a
 * pointer that it was given at start (transport->find_key):
 *
 *     stream      the table of operations
 *     thread      the loops of the data threads
 *     listen      the listening socket: accepts channels
 *     run         moves a channel through its states, from the dial to its end
 *     send receive    chunks on a channel that is READY
 *     conn        one peer node: secrets, channels, disconnect
 *     op          operations: posts, hands them to channels, cancels and ends them
 *     channel     a channel's memory and states
 *     schedule    the lists of work of the data threads, and waking them
 *     channel_io  reads and writes the bytes of a channel, without blocking
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
#define MAX_CHANNELS 64 /* of settings.connections: to one peer, besides those that are LEAVING */
#define MAX_CHANNELS_IN \
    (2u * MAX_CHANNELS)             /* from one peer: half of them may have left, and this node has not read their BYE */
#define MAX_STRANGERS 128u          /* accepted channels that have not greeted yet */
#define MAX_STRANGERS_OF_SOURCE 96u /* ... from one address: a node may open many channels at once */
#define FAIL_AFTER_NS 3000000000ull /* from a dial that failed: how long a channel of the peer is waited for */
#define LOSSY "small messages pass and large ones do not: look at the MTU of the path"
#define MAX_PROBES 16u                   /* probes that are under way, to all peers */
#define PROBE_BYTES 65536                /* more than any packet has: also a path that loses large packets is found */
#define RECORD_BYTES 16384               /* largest payload of a TLS record */
#define CALL_BYTES ((size_t)1 << 20)     /* largest number of bytes that one system call moves; see send.c */
#define MAX_IOVECS 256u                  /* ... and in how many places of memory they lie */
#define GATHER_BYTES ((size_t)256 << 10) /* buffer for the TLS records that one system call sends; see channel_io.c */

struct settings {
    char listen[INET6_ADDRSTRLEN];     /* "0.0.0.0", "::": every address, of which an offer has the one of the peer link */
    uint16_t first_port, last_port;    /* 0: any */
    struct sockaddr_storage advertise; /* what offers have instead: AF_UNSPEC, no other address; port 0, no other port */
    unsigned threads, connections;
    unsigned dead_after_s;
    uint64_t rekey_bytes;
    bool plain; /* this end accepts unencrypted channels */
};

/* ---- operations ---- */

/* The table in op.c has exactly these moves:
 *
 *   QUEUED    the operation stands in conn->sends or in a bucket of conn->recvs
 *   RUNNING   a channel moves its bytes
 *   STOPPING  it was cancelled; its channel stops using its memory, and completes the chunk without it
 *   ENDING    no channel has it; the home thread ends it
 *   ENDED     op_done has been called; the operation is freed
 *
 *   post           a channel takes it         all bytes are written or read, disconnect, failure
 *  ------> QUEUED -------------------> RUNNING ---------------------------------------------------> ENDED
 *             |                           |                                                        ^   ^
 *             |                           | cancel               the channel's thread              |   |
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
    struct channel *channel; /* [lock] RUNNING, STOPPING: the channel that moves it */
    enum op_state state;     /* [lock] */
};

/* ---- connections ---- */

struct conn_peer { /* what the peer's offer said */
    bool known;    /* [lock] the rest is set */
    struct sockaddr_storage address;
    struct secrets secrets;
    bool tls; /* channels to the peer use TLS */
};

/* A probe is a channel to the peer that carries no chunk of anybody, to find out whether channels get through. A connection has
 * one at a time (conn_way.probe), and that channel knows that it is one (channel.probe):
 *
 *   connection   NONE ---> WANTED ---> RUNNING ---> NONE       connected; a probe that failed is PROBE_AGAIN_NS old
 *                  ^          |
 *                  `----------'   another channel shows the same, or there is no memory for one
 *
 *   channel      NONE ---> RUNNING ---> SENT ---> NONE         it ends, or is used for a chunk
 *                  ^          |
 *                  `----------'   it ends before its bytes are sent
 */
enum probe_state { PROBE_NONE, PROBE_WANTED, PROBE_RUNNING, PROBE_SENT };

struct conn_way {      /* whether channels get through; [lock] */
    char why_not[144]; /* "": the last dial succeeded, or there was none; otherwise whom it did not reach, and why */
    bool met;          /* the peer has dialled a channel */
    bool lossy;        /* small messages pass and large ones do not, by the last probe or failure */
    bool takes;        /* a channel that this end dialled to take chunks was made */
    uint64_t dialled_ns, probed_ns; /* since when a dial is without an answer (0: none is); when the latest probe began */
    enum probe_state probe;
};

/* One peer node. */
struct conn {
    struct ring ring;  /* [lock] in transport->conns */
    struct ring visit; /* [lock] in home->visits */
    struct transport *transport;
    struct thread *home; /* ends operations that no channel has, and reports that the connection is closed */
    void *ctx;           /* conn_ctx of the core */
    struct secrets ours;
    struct numbers used_numbers; /* [lock] numbers of the channels that showed our token */
    bool offered;                /* [lock] */
    uint8_t peer_uuid[16];
    struct conn_peer peer;
    struct conn_way way;
    char description[80];            /* [lock] of the latest channel, for people; "": there was none yet */
    bool closing;                    /* [lock] disconnect was called */
    bool failed;                     /* [lock] conn_failed was called */
    uint32_t next_number;            /* [lock] of the next channel that greets the peer */
    unsigned n_out, n_in;            /* [lock] number of channels on which this end sends, and on which the peer does */
    struct ring channels;            /* [lock] all of them */
    struct ring idle;                /* [lock] channels to the peer that are READY and have nothing to send */
    struct ring sends;               /* [lock] QUEUED sends, in order */
    struct ring recvs[RECV_BUCKETS]; /* [lock] QUEUED receives, by transfer and chunk */
    unsigned posted;                 /* [lock] number of operations that have not ended */
};

/* ---- channels ---- */

/*  before a channel that takes is dialled, and after a dial that failed (from GONE):   WAITING ---> DIALLING
 *
 *  dialled:   NEW ---> DIALLING --.
 *                                 +-- TLS ---> SHAKING --.
 *                                 |                      +---> GREETING ---------> READY ---------------> LEAVING
 *                                 +-- unencrypted -------'     HELLO, WELCOME      BYE, after rekey_bytes
 *  accepted:  NEW ---> PEEKING ---'
 *
 *  From each state a channel may become GONE (failed, disconnected, evicted, or closed by the peer), after which it is freed.
 */
enum channel_state {
    CHANNEL_NEW,
    CHANNEL_WAITING,
    CHANNEL_DIALLING,
    CHANNEL_PEEKING,
    CHANNEL_SHAKING,
    CHANNEL_GREETING,
    CHANNEL_READY,
    CHANNEL_LEAVING,
    CHANNEL_GONE
};

/* What comes next on a channel that receives:
 *
 *   HEADER ---> BYTES ---> TRAILER ---> HEADER
 *        `--- of no bytes ---^
 */
enum in_stage { IN_HEADER, IN_BYTES, IN_TRAILER };

struct channel_ready { /* what epoll said of its socket, until a call has found otherwise */
    bool readable, writable;
    bool hung_up; /* the end of the connection: no further edge will come */
};

struct channel_tls {
    SSL *ssl;                       /* NULL: unencrypted */
    bool in_kernel;                 /* the kernel encrypts what this process writes */
    uint8_t *gathered;              /* [GATHER_BYTES] TLS records to be sent, if this process encrypts them; else NULL */
    size_t gathered_n, gathered_at; /* bytes in it; how many of them are sent */
    uint8_t id[ID_BYTES];           /* accepted: the id of the offer whose key it used */
};

#define UNNUMBERED UINT32_MAX

struct channel_greeting {
    uint32_t number; /* unique among the channels that show the same token; UNNUMBERED: it has not been shown */
    bool sent;       /* our part of the greeting */
    bool takes;      /* the end that dialled takes the chunks, and the other one sends them */
    bool done;
};

struct channel_end {
    const char *fault; /* why it failed, if not by a system call; static text */
    int error;         /* the errno with which it failed, or 0 */
    bool left;         /* it was LEAVING, so its end is no failure */
};

struct channel_chunk {           /* the chunk that it moves now */
    struct operation *operation; /* RUNNING or STOPPING on this channel; NULL: none, or it was ended early */
    bool sending;                /* a chunk is being sent */
    bool received;               /* a chunk has come for which a receive was posted */
    uint64_t bytes, at;          /* length of the chunk; bytes received, or sent including header and trailer */
    struct pieces memory;        /* of the operation, or none */
    struct header header;
    enum in_stage stage;
};

/* One TCP connection. */
struct channel {
    struct ring ring;         /* [lock] in conn->channels */
    struct stranger stranger; /* [lock] in transport->strangers, while conn is NULL */
    struct ring idle;         /* [lock] in conn->idle */
    struct ring attention;    /* [lock] in thread->attention */
    struct ring timed;        /* [data] in thread->timed, while it has a deadline */
    struct ring runnable;     /* [data] in thread->runnable */
    struct transport *transport;
    struct thread *thread;
    struct conn *conn; /* [lock] when it is set; NULL: a stranger, whose connection is not known yet */
    bool incoming;     /* the peer dialled it */
    bool evicted;      /* [lock] a stranger that must close to make room for others */
    enum channel_state state;
    int fd;
    struct channel_ready ready;
    struct channel_tls tls;
    struct channel_greeting greeting;
    uint64_t deadline_ns, dialled_ns;
    enum probe_state probe; /* [data] RUNNING, SENT: it is one, and nothing else has been sent on it */
    struct channel_end end;

    uint8_t
        small[HEADER_BYTES + TRAILER_BYTES + HELLO_BYTES]; /* greetings, and the headers and trailers that come in or go out */
    size_t small_n;

    struct channel_chunk chunk;
    uint64_t sent; /* bytes sent on this channel in all */
    bool counted;  /* [lock] conn->n_out or n_in includes it */
};

/* Whether this end sends chunks on the channel; otherwise the peer does. */
static inline bool channel_sends(const struct channel *channel)
{
    return channel->incoming == channel->greeting.takes;
}

/* ---- the transport ---- */

struct thread {
    struct transport *transport;
    pthread_t id;
    int epoll, wake;
    bool asleep;                 /* [lock] it examines its lists only after thread_wake */
    struct ring attention;       /* [lock] channels that have something new to do */
    struct ring visits;          /* [lock] conns that may be closed now */
    struct ring ending;          /* [lock] operations that end without a channel */
    struct ring timed, runnable; /* [data] channels that have a deadline; channels that can move bytes */
    uint8_t *scratch;            /* [data] SCRATCH_BYTES: receives the bytes of dropped chunks */
    uint8_t *staging;            /* [data] assembles a TLS record from several pieces */
    uint64_t yielded_ns;         /* [data] when it last called sched_yield */
    bool listener_paused;        /* [data] no descriptors are left: the listener is not watched until the next tick */
};
#define SCRATCH_BYTES ((size_t)65536)

/* Why the latest connections did not reach their peers, for the next ones to them: a connection that failed is made anew. */
struct remembered {
    uint8_t uuid[16];
    char why_not[144]; /* "": the place is free */
    bool lossy;
};
#define MAX_REMEMBERED 64u

struct transport {
    struct rdt_host host;
    struct settings settings;
    SSL_CTX *ssl_ctx;
    BIO_METHOD *gather; /* receives the records that OpenSSL writes */
    /* Copies the key of the offer with this id; it is conn_find_key. False: there is no such offer. Data threads, without the
     * lock. */
    bool (*find_key)(struct transport *transport, const uint8_t id[ID_BYTES], uint8_t key_p[KEY_BYTES]);
    pthread_mutex_t lock;
    struct ring conns;                            /* [lock] */
    struct strangers strangers;                   /* [lock] */
    bool stopping;                                /* [lock] the data threads end */
    unsigned next_thread;                         /* [lock] for the next channel */
    unsigned probes;                              /* [lock] channels that are probes */
    struct remembered remembered[MAX_REMEMBERED]; /* loop thread */
    unsigned next_remembered;
    int listener;
    struct sockaddr_storage address; /* of the listener */
    uint64_t quiet_until_ns;         /* [lock] refused strangers are logged at debug level until then */
    bool logged_kernel_tls;          /* [lock] the log has said at info level that the kernel encrypts */
    struct thread threads[MAX_THREADS];
};

/* config.c. INVALID: a value is malformed. UNSUPPORTED: the transport is switched off, or has no peers or no address. Only
 * inside open. */
enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err);

/* tls.c */
SSL_CTX *tls_create(struct rdt_error *err); /* NULL: UNSUPPORTED */
SSL *tls_start(struct channel *channel);    /* NULL: no memory */
bool tls_has_key(const SSL *ssl);           /* after the handshake: whether it used the key of an offer */
const char *tls_kernel_state(void);         /* for the log: whether the kernel or the daemon encrypts */

/* channel_io.c: reads and writes the bytes of a channel, without blocking. The channel's thread. The functions that return
 * ssize_t return a number of bytes or one of these. */
enum {
    CHANNEL_AGAIN = 0,   /* the socket is not ready */
    CHANNEL_END = -1,    /* the peer has closed its end */
    CHANNEL_BROKEN = -2, /* the channel has failed; its fault or error says why */
};
enum rdt_status channel_shake(struct channel *channel); /* the TLS handshake: RDT_AGAIN, RDT_OK, RDT_PROTOCOL */

/* Reads into iov[0], and what follows into the others if it has arrived already (never with TLS). */
ssize_t channel_read(struct channel *channel, const struct iovec *iov, unsigned n);
ssize_t channel_write(struct channel *channel, const struct iovec *iov, unsigned n);
ssize_t channel_flush(struct channel *channel); /* sends the gathered records; CHANNEL_AGAIN: some are left; 1: none is */
BIO_METHOD *channel_gather_method(void);        /* NULL: no memory */
bool channel_gather(struct channel *channel);   /* from now on gathers the channel's records; false: no memory */

/* schedule.c. The caller of the first four holds the lock; the others are called by the channel's thread. */
void thread_wake(struct thread *thread);
void thread_attend(struct channel *channel);             /* has the channel's thread call channel_attend */
void thread_visit(struct conn *conn);                    /* has the home thread check whether the connection has ended */
struct thread *thread_next(struct transport *transport); /* returns the thread for the next channel */
bool thread_watch(struct channel *channel);              /* adds the channel's socket to epoll; false: errno says why not */
void thread_run_again(struct channel *channel);          /* calls channel_run in the next round */
void thread_yield(struct thread *thread);                /* after each piece of work: yields the processor now and then */

/* channel.c: the channel's thread, unless a comment says otherwise. */
void channel_socket(int fd, const struct settings *settings);        /* sets the options of a channel's socket; any thread */
struct channel *channel_accept(struct transport *transport, int fd); /* with the lock; NULL: no memory */
struct channel *channel_create(struct conn *conn, bool takes);       /* to be dialled; the same */
void channel_free(struct channel *channel);
void channel_fail(struct channel *channel, const char *fault,
                  int error); /* the channel is GONE, and freed when channel_run returns */
void channel_set_state(struct channel *channel, enum channel_state to);
void probe_move(const struct transport *transport, enum probe_state *state, enum probe_state to); /* with the lock, or [data] */
void channel_leave(struct channel *channel); /* LEAVING: all is sent, and it ends when the other end closes */
void channel_set_deadline(struct channel *channel, uint64_t ns); /* in ns nanoseconds; 0: it has none any more */

/* thread.c */
enum rdt_status threads_start(struct transport *transport, struct rdt_error *err);
void threads_stop(struct transport *transport);

/* listen.c */
enum rdt_status listen_open(struct transport *transport, struct rdt_error *err);
void listen_address(const struct transport *transport, void *conn_ctx,
                    struct sockaddr_storage *address_p); /* where that peer reaches the listener; loop thread */
/* Whether the other node of the connection may be at the address that it offers. A daemon must not be sent to services that
 * trust their own machine or wire, so an address of the loopback interface, or a link-local one, is allowed only where the
 * peer link uses such a one, too. All others are: data may have a network of its own, behind routers and port mappings, of
 * which the peer link says nothing, and the node has proved its identity there. Loop thread. PROTOCOL. */
enum rdt_status listen_may_dial(const struct transport *transport, void *conn_ctx, const struct sockaddr_storage *address,
                                struct rdt_error *err);
void listen_accept(struct transport *transport, struct thread *thread);

/* run.c: the channel's thread. */
void channel_run(struct channel *channel);    /* moves the channel on as far as it goes; may free it */
void channel_expire(struct channel *channel); /* its deadline has passed; may free the channel */
void channel_attend(struct channel *channel); /* acts on a changed field that is marked [lock]; may free the channel */

/* send.c, receive.c: the channel's thread. Each call moves a limited number of bytes, so that channels take turns. */
void send_run(struct channel *channel);
void receive_run(struct channel *channel);

/* conn.c. Loop thread: */
enum rdt_status conn_create(struct transport *transport, const uint8_t peer_uuid[16], void *ctx, struct conn **conn_p,
                            struct rdt_error *err);
void conn_destroy(struct conn *conn);
enum rdt_status conn_offer(struct conn *conn, const struct sockaddr_storage *address, uint8_t blob[RDT_OFFER_MAX_BYTES],
                           size_t *bytes_p);
enum rdt_status conn_connect(struct conn *conn, const void *blob, size_t bytes, struct rdt_error *err);
void conn_disconnect(struct conn *conn);
void conn_describe(struct conn *conn, char *text_p, size_t size); /* "": it is not known yet */
/* AGAIN: nothing is known to be wrong. Otherwise what keeps this end's channels from the peer: OK, if the peer's get through
 * to this end, and PEER_LOST. It probes again, if the last probe was a while ago. */
enum rdt_status conn_trouble(struct conn *conn, char *text_p, size_t size);
/* Data threads: */
bool conn_find_key(struct transport *transport, const uint8_t id[ID_BYTES], uint8_t key_p[KEY_BYTES]);
const char *
conn_take_channel(struct channel *channel, const uint8_t id[ID_BYTES],
                  const uint8_t token[TOKEN_BYTES]); /* makes a stranger the connection's channel; NULL, or why not */
enum dial_end { DIAL_DROPPED, DIAL_WAITS, DIAL_FAILS };
/* The channel was dialled, and not greeted. WAITS: a channel of the peer may still come in its place. FAILS: there is nothing
 * else on which to send what is queued. */
enum dial_end conn_dial_failed(struct channel *channel, const char *why);
bool conn_may_dial(struct channel *channel); /* NEW: at once; false: the peer's channel is waited for first */
bool conn_needs(struct channel *channel);    /* WAITING: no other channel has come for what waits for this one */
void conn_greeted(struct channel *channel);
void conn_lossy(struct channel *channel);                           /* nothing large has passed on it */
void conn_probe_ends(struct channel *channel, const char *why_not); /* of a channel that is one; NULL: nothing is wrong */
void conns_probe(struct transport *transport);     /* starts the probes that are wanted, as far as MAX_PROBES allows */
void conn_unreachable(struct conn *conn);          /* conn_fail, with the sentence of conn->way */
void conn_channel_leaves(struct channel *channel); /* nothing more is sent on it, and this end may dial another one */
void conn_fail(struct conn *conn, enum rdt_status status, const char *msg);
void conns_close(struct thread *thread); /* reports the connections that have ended */

/* op.c. Loop thread: */
enum rdt_status op_post(struct conn *conn, struct rdt_op *op, bool is_send, struct rdt_error *err);
void op_cancel(struct conn *conn, struct rdt_op *op);
/* Any thread, with the lock: */
void ops_start_sends(struct conn *conn); /* wakes or dials a channel for queued sends */
void ops_end_queued(struct conn *conn);  /* moves the QUEUED operations to home->ending */
/* Data threads: */
struct operation *op_take_send(struct channel *channel); /* NULL: none is queued, and the channel is idle now */
struct operation *op_take_recv(struct conn *conn, struct channel *channel, const struct header *header);
void op_end(struct operation *operation, enum rdt_status status, const char *msg);
void ops_report_ended(struct thread *thread);

#endif
