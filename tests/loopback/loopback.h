/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "loopback": a tool for tests that moves bytes between daemons of one machine and misbehaves
 * on demand.
 *
 * Bytes travel over Unix stream sockets: one that this end opened to the peer (for its sends, and for its reads with their
 * answers) and one that the peer opened. One thread per transport does all the work. transport->lock protects everything here;
 * the thread holds it, except during its poll and its calls to the host.
 *
 * With `ordered`, all sends and receives stand in one queue, whatever their connection: only the one at the head moves, and
 * only when its counterpart is at the head of the other node's queue too. The receiver tells the sender when it is
 * (FRAME_CLEAR).
 */
#ifndef TESTS_LOOPBACK_LOOPBACK_H
#define TESTS_LOOPBACK_LOOPBACK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/rdt_backend.h"

#define NAME_BYTES 40
#define TOKEN_BYTES 16
#define MAX_SOCKETS 128

/* Each field is a key of the section [loopback], and a line of the fault file, which is read again before every operation. */
struct faults {
    uint32_t delay_ms;            /* each chunk starts this much later than the one before */
    uint32_t lose_every;          /* every n-th operation ends only by a disconnect */
    uint32_t fail_every;          /* every n-th operation ends with TRANSPORT */
    uint32_t give_up_every;       /* every n-th operation ends as if it had been cancelled */
    uint32_t no_abort;            /* cancel does nothing */
    uint32_t late_ms;             /* a cancelled operation ends this much later, and its memory is written just before */
    uint32_t hold_chunk;          /* chunk n - 1 of each transfer is not sent as long as this is n; 0: none is held */
    uint32_t flip_chunk;          /* a bit of chunk n - 1 of each transfer is sent wrong; 0: of none */
    uint32_t disconnect_delay_ms; /* a disconnect takes effect this much later */
    uint32_t refuse_group;        /* tests/grouped: a group is not connected */
    uint32_t refuse_registration; /* memory of devices is not registered */
    uint32_t hang_group;          /* tests/grouped: a group never becomes ready */
};

/* ---- operations ---- */

/*   post           it is due                     all bytes written, or read
 *  ------> WAITING ----------------> RUNNING -------------------------------> DONE: op_done, freed
 *             |  \                      |                                       ^
 *             |   \ lose_every           \ cancel, with late_ms                 |
 *             |    `---> LOST             `------> LATE ------------------------|
 *             |            \ disconnect                                         |
 *             `-------------`---------------------------------------------------'
 */
enum op_state { OP_WAITING, OP_RUNNING, OP_LOST, OP_LATE, OP_DONE };
enum op_kind { OP_SEND, OP_RECV, OP_READ };

struct operation {
    struct operation *next;       /* in conn->operations or transport->done */
    struct operation *queue_next; /* in transport->queue */
    bool cleared;                 /* a receive: its sender has been told that it is at the head */
    struct rdt_op *op;
    struct conn *conn;
    enum op_kind kind;
    enum op_state state;
    uint64_t due_ns;        /* WAITING: when it starts; LATE: when it ends */
    enum rdt_status status; /* how it ends; set by the post if it is to fail */
    const char *msg;        /* static */
};

/* ---- sockets ---- */

enum frame_type { FRAME_HELLO = 1, FRAME_DATA, FRAME_READ, FRAME_ANSWER, FRAME_CLEAR };

struct frame {
    uint32_t type;
    uint32_t refused; /* ANSWER: refused, so no bytes follow; DATA: the receiver changes a bit */
    uint64_t transfer, chunk;
    uint64_t bytes;       /* number of bytes that follow; READ: that are requested */
    uint64_t key, offset; /* READ: what to read; HELLO: the token */
};

struct message { /* a frame to be written */
    struct message *next;
    struct frame frame;
    const uint8_t *payload;
    uint64_t at;                       /* bytes of frame and payload that have been written */
    struct operation *operation;       /* a send, which ends when the message is written; or NULL */
    const struct registration *source; /* an answer: the registration that the payload lies in */
};

struct channel {
    int fd;            /* -1: none */
    struct conn *conn; /* NULL: incoming, before its HELLO */
    struct message *first, **last;
    struct frame in;          /* the frame that is being read */
    uint64_t in_at;           /* bytes of it and of its payload that have been read */
    struct operation *target; /* receives the payload; NULL: the payload is dropped */
};

struct clearance { /* this receive of the peer is at the head of the peer's queue */
    struct clearance *next;
    uint64_t transfer, chunk;
};

struct conn {
    struct conn *next;
    struct transport *transport;
    void *ctx;
    struct party *group; /* tests/grouped: the group that it belongs to; NULL: none */
    uint8_t token[TOKEN_BYTES], peer_token[TOKEN_BYTES];
    char peer_name[NAME_BYTES];
    bool connected, token_used;
    bool closing;
    bool failed, failure_told;
    uint64_t close_ns, next_due_ns;
    struct channel out, *in; /* `in` lives in transport->incoming */
    struct operation *operations;
    struct clearance *clearances;
};

struct registration {
    struct registration *next;
    uint64_t key;
    uint8_t *addr;
    uint64_t bytes;
    bool on_device; /* addr is of the fake device */
};

#define GROUP_NEWS_MAX 32

struct group_news { /* the contexts of groups about which the host is to be told something */
    void *ready[GROUP_NEWS_MAX], *failed[GROUP_NEWS_MAX], *closed[GROUP_NEWS_MAX];
    unsigned n_ready, n_failed, n_closed;
    const char *why; /* why the failed ones failed; static text */
};

struct transport {
    struct rdt_host host;
    bool on_devices; /* it moves memory of the fake device too */
    /* tests/grouped only: */
    struct party *groups;
    void (*look_at_groups)(struct transport *transport, struct group_news *news_p); /* called with the lock */

    uint32_t sides;
    bool ordered, says_so; /* there is a queue; the core is told of it */
    struct operation *queue;
    struct faults faults; /* from the configuration */
    char fault_file[256];
    char version[32];
    uint64_t n_ops; /* counted for lose_every and fail_every */
    pthread_t thread;
    pthread_mutex_t lock;
    bool stopping;
    int listener, wake;
    char name[NAME_BYTES];
    struct conn *conns;
    struct channel incoming[MAX_SOCKETS];
    struct registration *registrations;
    uint64_t next_key;
    struct operation *done, **done_last; /* operations to be reported */
};

/* loopback.c: the operations that the tables of tests/loopback and tests/grouped share */
enum rdt_status loopback_transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err);
void loopback_transport_close(void *arg);
const char *loopback_transport_version(void *arg);
const char *loopback_queue(void *arg, const char *memory_kind, const char *device);
bool loopback_moves(void *transport, const char *memory_kind);
enum rdt_status loopback_register_memory(void *arg, void *addr, uint64_t bytes, const char *memory_kind, void **registration_p,
                                         struct rdt_error *err);
void loopback_unregister_memory(void *arg, void *registration);
enum rdt_status loopback_pack_key(void *transport, void *arg, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                                  struct rdt_error *err);
enum rdt_status loopback_connection_create(void *arg, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                           struct rdt_error *err);
void loopback_connection_destroy(void *arg);
enum rdt_status loopback_offer(void *arg, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err);
enum rdt_status loopback_connect_to(void *arg, const void *blob, size_t bytes, struct rdt_error *err);
uint32_t loopback_sides(void *arg, const char *memory_kind);
void loopback_disconnect(void *arg);
enum rdt_status loopback_post_send(void *conn, struct rdt_op *op, struct rdt_error *err);
enum rdt_status loopback_post_recv(void *conn, struct rdt_op *op, struct rdt_error *err);
enum rdt_status loopback_post_read(void *conn, struct rdt_op *op, struct rdt_error *err);
void loopback_cancel(void *arg, struct rdt_op *op);
void loopback_wake(struct transport *transport);

/* faults.c */
enum rdt_status faults_configure(struct transport *transport, struct rdt_error *err);
struct faults faults_now(const struct transport *transport);

/* wire.c: with the lock */
enum rdt_status wire_listen(struct transport *transport, struct rdt_error *err);
void wire_connect(struct conn *conn);
bool wire_queue(struct channel *channel, const struct frame *frame, const void *payload, struct operation *operation,
                const struct registration *source);
void wire_drop(struct channel *channel);
void wire_forget(struct transport *transport, const struct registration *registration);
void wire_accept(struct transport *transport);
void wire_move(struct transport *transport, struct channel *channel);

/* Returns the address of the operation's bytes; for memory of the fake device (tests/fake_device) the one that its plug-in
 * uses. */
uint8_t *loopback_real(uint8_t *addr, bool on_device); /* where this process has the bytes of that address */
uint8_t *loopback_address(const struct rdt_op *op);

/* ops.c: with the lock */
uint64_t now_ns(void);
enum rdt_status op_post(struct conn *conn, struct rdt_op *op, enum op_kind kind, struct rdt_error *err);
void op_cancel(struct operation *operation);
void op_end(struct operation *operation, enum rdt_status status, const char *msg);
struct operation *op_find(struct conn *conn, enum op_kind kind, uint64_t transfer, uint64_t chunk);
bool op_clear(struct conn *conn, uint64_t transfer, uint64_t chunk); /* notes a clearance; false: no memory */
uint64_t ops_run(struct conn *conn); /* starts and ends what is due; returns when something is due next, 0: never */
void conn_lost(struct conn *conn);
bool conn_end_if_due(struct conn *conn); /* true: it has left the lists, and its conn_closed is to be called */

#endif
