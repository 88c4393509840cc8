/* SPDX-License-Identifier: Apache-2.0 */
/* librdt: the room client/ and, below it, the room client/session/.
 *
 * client/session/ owns this process's end of one session: the socket and who reads it, what waits for an answer, the mappings
 * of the daemon's memory, and the events that nobody has taken yet. client/ owns requests, fetched objects and the calls of
 * rdt.h. Together they promise what rdt.h says. They refuse to start threads, to log, to print, to move bytes over the socket
 * (beyond small tensors inline), and to touch a device.
 *
 * Order of the files. A file uses those on lower lines only; tests/check-layers compares this drawing with the symbols
 * of the objects. A lower file calls upward by the callbacks of struct rdt and of struct pending_ops.
 *
 *     client/
 *    15  groups
 *    14  connect                     opens and closes a connection; sets its callbacks
 *    13  resume                      goes on with the session at the next daemon
 *    12  calls fetch memory_calls put  public calls
 *    11  device loans shards verify wait  boxes and parts; memory on devices; regions loaned to puts; rdt_wait, rdt_dispatch
 *    10  alloc backends batch        regions of the session; plug-ins; the fds that one message's fetches share
 *        info metrics names          lists and counters; published names
 *        request watch               one fetch or wait; taking events
 *     9  copying                     copies within a device that this process makes
 *     8  call fetched                one request and its reply; one fetched object
 *     7  note room                   requests whose answer nobody waits for; cached mappings that are given up
 *     6  mappers repeat targets      memory kinds; sending a request again; memory that a fetch fills
 *     5  options overlap shards tensor  options structs; targets that share memory; boxes of a put; checks of tensors
 *     client/session/
 *     5  events                      events that have not been taken yet
 *     4  connection                  this header: the lock, who reads the socket, and its loss
 *     3  sending                     this header: encoding messages and sending them
 *     2  socket                      the socket: dialling, and setting it aside
 *     1  fds memory pending process  whose the descriptors are; mappings; what waits for an answer; the pid
 *     0  ids delta server interrupt  lists of ids; deltas, which need no session; who serves a socket; rdt_interrupt_by
 *        written                     which pages of a private mapping this process wrote
 *
 * A connection. This header owns framing, waiting, deadlines, the loss of the socket and the return to the next daemon. It
 * knows no message but ErrorReply.
 *
 * No thread belongs to the library; the callers that wait read the socket. One of them, the leader, polls it without
 * the lock. The others, the followers, sleep on `changed`. The leader hands each answer to the request that it is for
 * and wakes the followers. When the leader returns to its caller, a follower takes its place.
 *
 *     thread A: rdt_fetch   ── lock ── sends ── poll ───────┐ reads A's answer ── unlock ── returns
 *     thread B: rdt_ping    ── lock ── sends ── sleeps ─────┴──────── wakes: polls ── reads B's answer ──
 *
 * A session that has a token outlasts its daemon (`kept`). Its connection has these states; that of any other session has only
 * UP and ENDED.
 *
 *             socket lost            dialled              HELLO: resumed         RESUME answered
 *       UP ───────────────► AWAY ───────────────► GREETING ───────────────► RESUMING ──────────► UP
 *                            ▲                       │                         │
 *                            └──── socket lost ──────┴─────────────────────────┘
 *
 *       any state ── rdt_close; a broken message; the daemon ended the session; not UP again within grace_ns ──► ENDED
 *
 *     state           a new request                     a release, a cancel       the callers that wait
 *     UP              is sent                           is sent                   read answers
 *     AWAY            is kept and sent later            is dropped                dial every 1 to 100 ms
 *     GREETING        the same                          the same                  read the answer to HELLO
 *     RESUMING        the same                          is sent when UP           read the answer to RESUME
 *     ENDED           fails: DISCONNECTED, RESTARTED    fails                     have been told
 *
 * The library has no thread, so the callers that wait do all of it, and rdt_ready waits for it (connection_return): the leader
 * dials when it is time to, and reads the answers; a deadline ends a call in any state. In an event loop rdt_dispatch does it.
 * rdt_fd is an epoll fd, which stays the same while the socket within is replaced; its timer becomes readable when it is time
 * to dial.
 *
 * What is kept of a request until it is answered: of a call that blocks, nothing but the caller's own message and fds, because
 * they are there until it returns (struct waiting); of a fetch, a wait, a hold, and a request that nobody waits for, the packed
 * message (struct repeat, struct note). All of it is under `lock`. connection_up sends again what has no answer, in the order
 * of the ids. Releases and cancels need no repetition: RESUME lists what this process still has, and the daemon ends the rest.
 *
 * Everything below is under `lock` unless its comment says otherwise.
 */
#ifndef CLIENT_CONNECTION_H
#define CLIENT_CONNECTION_H

#include <protobuf-c/protobuf-c.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "client/rdt.h"
#include "fds.h"
#include "ids.h"
#include "memory.h"
#include "pending.h"
#include "proto/container_of.h"
#include "proto/frame.h"
#include "proto/list.h"
#include "proto/poll_rule.h"
#include "proto/wire_limits.h"

enum connection_state { CONNECTION_UP, CONNECTION_AWAY, CONNECTION_GREETING, CONNECTION_RESUMING, CONNECTION_ENDED };

enum connection_ability {                             /* of the daemon */
                          CONNECTION_GROWS_PARTS = 1, /* parts may come in pieces */
                          CONNECTION_HANDS_OUT = 2,   /* many objects come in one answer, and are released by one message */
};

/* What the daemon can do. What is not atomic never changes after rdt_connect, so it is read without the lock. The next daemon
 * may be older. */
struct connection_can {
    uint64_t inline_max_bytes; /* tensors of up to this many bytes travel in the message */
    bool tensor_runs;          /* it reads lists of tensors in runs */
    bool loans;                /* it understands Put.loaned */
    atomic_uint loan_flags;    /* the flags that such a put may have */
    atomic_uint abilities;     /* enum connection_ability */
};

/* What the files above are told. It never changes after rdt_connect. */
struct connection_events {
    void (*event)(rdt *conn, struct frame *frame);      /* FRAME_EVENT */
    void (*late_reply)(rdt *conn, struct frame *frame); /* a reply that nobody waits for any more */
    void (*away)(rdt *conn);    /* a kept session has lost its socket: drops what does not survive the daemon */
    void (*dialled)(rdt *conn); /* GREETING: sends HELLO */
    void (*expired)(rdt *conn, struct expiry *expiry); /* it is no longer in the heap */
    void (*look)(rdt *conn);                           /* it is time to look after copies that devices make */
};

struct connection_imports {
    bool under_way; /* an import takes several messages; only one may at a time */
    uint64_t n;     /* how many have taken several messages */
};

struct connection_released {                    /* corked: holds whose RELEASE is sent before the next message */
    uint64_t holds[256];                        /* [n] */
    uint64_t regions[RDT_MAX_RELEASED_REGIONS]; /* [n_regions] that stay mapped */
    unsigned n, n_regions;
    uint64_t gone_events; /* REGION_GONE messages that had come when the first was gathered */
};

struct connection_sending {
    struct frame_writer writer;
    struct frame_writer later; /* RESUMING: releases of what RESUME has listed, to be sent when it has been answered */
    struct connection_released released;
    unsigned corks; /* calls of rdt_cork less those of rdt_uncork */
    bool blocked;   /* the socket takes no more at present */
    bool not_read;  /* connection_drain waited for the daemon in vain; it does not wait again until the daemon reads */
};

struct connection_early { /* the fds that came by FETCH_FDS before the answer to a fetch */
    uint64_t handle;
    int *fds;
    size_t n, room;
};

struct connection_calls {
    uint64_t last_id;
    struct pending_table pending;
    struct expiry_heap expiries;
    struct pending handshake; /* HELLO or RESUME */
    struct id_list abandoned; /* PUTs whose callers stopped waiting, and that have not been answered */
    unsigned n_notes;         /* requests without an answer that nobody waits for */
    struct connection_early early;
    struct list copies; /* of copying.c: those that devices make for fetches */
    int64_t look_ns;    /* when to look after them; CLOCK_NEVER: nobody waits for one */
    rdt *next_left;     /* of connect.c: was closed before their end */
};

struct connection_why {
    struct rdt_error lost;   /* ENDED */
    struct rdt_error unsent; /* if status is not RDT_OK, nothing can be sent, but the daemon's last words can be read */
};

struct connection_socket {
    int fd;    /* -1: there is none */
    int stale; /* lost while the leader polls it, and closed when it returns; -1: there is none */
    struct fd_mark mark, stale_mark;
    uint64_t n; /* sockets so far; a request remembers on which one it was sent */
    /* The file at `path` when it was dialled; inode 0: unknown. */
    dev_t device;
    ino_t inode;
    int64_t look_ns; /* when a thread that waits looks again whether it is the same file */
};

struct connection_session {
    bool kept;                 /* it outlasts its daemon: */
    uint8_t token[16];         /* what the next daemon knows it by */
    int64_t grace_ns;          /* how long it may take until it is UP again */
    int64_t away_ns;           /* since when it is not UP */
    int64_t dial_ns;           /* AWAY: when to dial next */
    int64_t dial_delay_ns;     /* between this attempt and the next */
    struct rdt_error dial_err; /* of the last attempt that failed */
};

/* The threads that wait. */
struct connection_waiters {
    struct poll_rule rule; /* whether the leader polls without sleeping first */
    bool polling;          /* a leader is in poll, without the lock */
    unsigned followers;    /* asleep on `changed` */
    uint64_t n_changes;    /* how often a request ended or an object arrived */
    bool wake_followers;   /* one did, and the followers have not been woken since */
    bool wake_leader;      /* the leader must poll for other events, or look at what has changed */
    int wake_fd, waker_fd; /* a pipe's ends for reading and writing; they never change */
    struct fd_mark wake_mark;
};

/* rdt_fd. The descriptors never change. */
struct connection_loop {
    int epoll_fd, timer_fd, event_fd;
    bool used;
    bool wants_out;   /* the epoll watches the socket for EPOLLOUT too */
    bool has_event;   /* event_fd is readable */
    int64_t timer_ns; /* when timer_fd fires; CLOCK_NEVER: it is not armed */
    size_t unseen;    /* requests that ended since the last rdt_dispatch */
};

/* For room.c. */
struct connection_room {
    struct list answers; /* to fetches: they wait until cached mappings are given up, or until their mapper can map them */
    struct list again;   /* those of them that are being handled again */
    unsigned n_fds;      /* descriptors of these answers */
    struct expiry retry; /* when the mapper is asked again */
    bool asked;          /* `pending` waits for the reply */
    bool made;           /* the answers are being handled again */
    struct pending pending;
};

/* For watch.c. */
struct connection_watch {
    uint32_t kinds;          /* of rdt_watch; 0: nothing is watched */
    uint64_t asked;          /* request id of the newest WATCH */
    uint64_t event_base;     /* what the numbers of this daemon's events are above */
    struct list events;      /* received and not yet taken */
    size_t event_bytes;      /* of all of them */
    uint64_t event_sequence; /* number of the event that was taken last */
};

struct rdt {
    /* These never change after rdt_connect, so they are read without the lock. */
    pid_t pid;
    char name[RDT_MAX_NAME_BYTES + 1]; /* of this client, as HELLO says it */
    uint32_t daemon_uid;               /* that may serve the socket, beside those of server.h; 0: none was named */
    struct connection_can can;
    struct connection_events on;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* what followers sleep on */
    pthread_cond_t copied;  /* a thread stopped writing into some request's targets */
    struct connection_imports imports;
    struct frame_reader reader;
    struct connection_sending sending;
    struct connection_calls calls;
    struct rdt_node_info node; /* a new daemon changes boot_id, address and daemon_version */
    char path[108];            /* of the socket; "": not known */
    struct connection_why why;

    enum connection_state state;
    struct connection_socket socket;
    struct connection_session session;
    struct connection_waiters waiters;
    struct connection_loop loop;
    bool told_lost; /* rdt_dispatch has said that the connection is lost */
    struct connection_watch watch;

    struct memory memory;
    struct list loans_idle, loans_active; /* of loans.c; the one that was used last is first */
    struct list batches;                  /* of batch.c */
    struct connection_room room;
    struct list requests, objects; /* all of them; rdt_close ends them */
    struct list arrived;           /* requests whose bytes must still be copied into their targets */
};

/* Every public function calls this first, without the lock. Errors: FORKED (in a child), INVALID (NULL). */
enum rdt_status connection_check(const rdt *conn, struct rdt_error *err);
bool connection_is_forked(const rdt *conn);

void connection_locks_init(rdt *conn); /* the mutex and the conditions */
void connection_locks_fini(rdt *conn);

/* connection_unlock also wakes the threads that wait, brings rdt_fd up to date, and unmaps retired mappings. */
void connection_lock(rdt *conn);
void connection_unlock(rdt *conn);

static inline bool connection_has_ended(const rdt *conn)
{
    return conn->state == CONNECTION_ENDED;
}

/* Copies what is known about the daemon's node. Takes the lock. */
void connection_copy_node(const rdt *conn, struct rdt_node_info *node_p);

/* Returns a new id for a request or a fetch handle. */
uint64_t connection_id(rdt *conn);
uint64_t connection_ids(rdt *conn, unsigned n); /* the first of n successive ones */

/* Queues the message and sends what the socket takes. While the connection is neither UP nor ENDED the message is dropped:
 * whoever waits for an answer sends it from on_resumed. Errors: LIMIT (the message is longer than a frame, or too many bytes
 * are queued; an `urgent` message, which releases something, is queued in any case), DISCONNECTED, RESTARTED, NO_MEMORY. */
enum rdt_status connection_send(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, bool urgent,
                                struct rdt_error *err);

/* As connection_send, with fds, which are duplicated. SYSTEM: that failed. */
enum rdt_status connection_send_fds(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, const int *fds,
                                    unsigned n_fds, struct rdt_error *err);

/* Queues a message that releases something, for callers that will send more of them. It is sent with the next message, when a
 * few are queued, or by connection_flush, which the caller must call before it blocks or returns. Sending each by itself would
 * wake the daemon each time, which takes longer than the message. */
void connection_send_later(rdt *conn, uint16_t type, const ProtobufCMessage *message);

/* Sends a message that releases something: at once, or later while the connection is corked. id 0: it needs no answer. */
enum rdt_status connection_release(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message,
                                   struct rdt_error *err);

/* Releases a hold on an object, whose regions [n_regions] stay mapped for reading. While the connection is corked, many such
 * releases are one message. False: the caller sends it by itself. */
bool connection_gather_release(rdt *conn, uint64_t hold, const uint64_t *regions, size_t n_regions);
void connection_forget_released(rdt *conn); /* RESUME, which does not list them, releases them */

/* As connection_send, without fds, for a message that is packed already. */
enum rdt_status connection_send_packed(rdt *conn, uint16_t type, uint64_t id, const uint8_t *payload, size_t bytes,
                                       struct rdt_error *err);

/* GREETING and RESUMING: sends HELLO or RESUME, whose answer goes to conn->handshake. */
enum rdt_status connection_shake(rdt *conn, uint16_t type, const ProtobufCMessage *message, const struct pending_ops *ops,
                                 struct rdt_error *err);
void connection_flush(rdt *conn);

/* Waits at most half a second until the socket has taken all queued messages. A public function that releases something
 * calls it last. Releases the lock meanwhile. A daemon that does not read its socket delays only one call; later calls
 * return at once until it reads again. */
void connection_drain(rdt *conn);

/* If the daemon of a kept session is away, waits until the next one has what was sent, or until two seconds after the loss
 * was noticed: for a message that others wait for, where the caller may make no further call. Returns at once if the program
 * has an event loop, which does this. Releases the lock meanwhile. */
void connection_return(rdt *conn);

/* Waits until something may have happened that the caller must look at. TIMED_OUT: the deadline has passed; everything that
 * had arrived by then has been handled, so the caller looks once more. CANCELLED: this thread is to stop waiting
 * (rdt_interrupt_by). Releases the lock meanwhile. */
enum rdt_status connection_step(rdt *conn, int64_t deadline_ns);

/* Whether this thread is to stop waiting, for callers that do long work beside connection_step. Asks if it is time to, and
 * releases the lock meanwhile. */
bool connection_is_interrupted(rdt *conn);

/* Does what connection_step does without blocking: reads everything there is, and ends requests that are
 * overdue. */
void connection_poll(rdt *conn);

/* Says that a request has ended or an object has arrived. connection_unlock then wakes the threads that wait. */
void connection_notify(rdt *conn);

/* Ends the connection: everything that waits for an answer gets on_lost, and every later call fails with DISCONNECTED, or with
 * RESTARTED if that is why->status. Later calls of this function do nothing. */
void connection_lose(rdt *conn, const struct rdt_error *why);

/* The socket is of no use any more. A kept session goes on: its connection is AWAY. Any other ends. */
void connection_hang_up(rdt *conn, const struct rdt_error *why);

/* RESUMING: the daemon goes on with the session. Everything that waits for an answer gets on_resumed. */
void connection_up(rdt *conn);

/* Returns DISCONNECTED or RESTARTED with the reason. Call it only if the connection has ENDED. */
enum rdt_status connection_lost_error(const rdt *conn, struct rdt_error *err);

/* Writes the ErrorReply of a frame to err. Never returns RDT_OK. */
enum rdt_status connection_error_reply(const struct frame *frame, struct rdt_error *err);

void connection_close_early(struct connection_early *early); /* closes its fds, and makes it empty */

#endif
