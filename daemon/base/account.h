/* SPDX-License-Identifier: Apache-2.0 */
/* The room at the bottom of the daemon, which every other room uses: data structures, time, threads, and the accounts of
 * everything that has a limit.
 *
 * Owns: lists, maps and ordered tables (list.h, map.h, index.h); ids (ids.h); deadlines
 * (deadline.h); work in slices (slices.h); state tables (sm.h); the log (log.h); events for clients that watch (events.h); the
 * identity of the node and of owners (node.h, owner.h); the worker pool (work.h), the threads of owners (owner_work.h) and the
 * way from any thread to the loop (wake.h); busy polling (busy_poll.h); the memory that the kernel leaves (memory_room.h); the
 * guard against SIGBUS (sigbus_guard.h); packed shapes (shapes.h); the service manager's protocols (sdnotify.h); and the
 * accounts below.
 *
 * Public headers: all of them.
 *
 * Refuses: to know any other room. It knows no object, client or peer, and includes nothing of the daemon but itself.
 *
 * Accounts count what is in use and check it against limits: one for each client, one for each owner that has anything
 * here, one for each person, and one for the node. Objects, regions, requests and transfers refer to the account of their
 * client, or of the owner when another node requested them. An account exists until its last reference is dropped, so
 * things that a client leaves behind stay counted.
 *
 *   node <-- person <-- owner (tenant, uid) <-- client
 *
 * A person may have thousands of user ids, and be an owner with each of them. So what is kept for others, or shared equally, is
 * kept for and shared by persons: the last eighth of each limit of the node, which is reserved for persons that use at most a
 * 64th of it; the turns of those who wait for room; shares of a turn of the loop (conn_share.h); threads (owner_work.h). Then
 * one or a few persons cannot take everything from the others. Limits that are configured are for clients and owners.
 *
 * What the daemon needs to remember a thing is heap of its owner, too: account.c says how much for each kind.
 *
 * A limited thing is charged to all four at once before anything is done, and is refused as a whole if one of them has no
 * room. A request that may wait for room queues at the account that had none, and is called in order. Persons that wait for
 * room of the node take turns, and so do the owners of each, however many requests each of them has. No room is reserved for
 * a request that needs much of it (account.c says why).
 *
 * Everything here runs on the loop thread unless a header says otherwise.
 */
#ifndef DAEMON_ACCOUNT_H
#define DAEMON_ACCOUNT_H

#include "daemon/base/events.h"
#include "daemon/base/map.h"
#include "daemon/base/owner.h"
#include "daemon/base/usage.h"
#include "proto/list.h"
#include "rdt_status.h"

struct cache_owner;
struct cache_person;

struct account_limits { /* 0: no limit */
    uint64_t client[USAGE_COUNT], owner[USAGE_COUNT], node[USAGE_COUNT];
    uint64_t uncounted_bytes; /* heap of one message that is received, or of unread answers, is charged above this */
};

/* What the connections of a person use of what all share: of the loop (conn_share.h), and of descriptors on their way. */
struct account_share {
    struct list link;    /* in conns->shares.persons, while a connection waits */
    struct list waiting; /* struct conn.waiting, in order */
    uint64_t turn;       /* the turn of the loop to which used_ns belongs */
    uint64_t used_ns;
    uint64_t sent_fds; /* in answers that may not have been read yet (conn_heap.h) */
};

/* What has ids of its own (ids.h). */
enum account_ids { IDS_GENERATIONS, IDS_REGIONS, IDS_SESSIONS, IDS_HOLDS, IDS_TRANSFERS, ACCOUNT_IDS };

struct account {
    struct owner owner;
    uint8_t key[4 + sizeof((struct owner *)0)->tenant];
    uint32_t refs;
    uint64_t client;           /* session id; 0: the account of an owner, of a person or of the node */
    struct account *parent;    /* one reference; NULL: the node's account, or one of a unit test */
    const uint64_t *limits;    /* [USAGE_COUNT], borrowed; NULL: no limits */
    struct accounts *accounts; /* NULL: in no table, so its creator frees it */
    uint64_t used[USAGE_COUNT];
    /* struct account_wait.link: requests that wait for room in this account, in order; unused in the
     * accounts of persons and of the node */
    struct list waiting[USAGE_COUNT];
    struct list in_turn;        /* of an owner, while a request waits here: its person's owners_in_turn */
    struct list owners_in_turn; /* of a person, which is in accounts->in_turn meanwhile: the one that got room last is last */
    unsigned n_waiting;
    /* For the room peers, in a person's account: the time until which its dials of unlisted addresses have
     * used up its rate. */
    uint64_t dialled_ns;
    struct cache_owner *cache_owner;   /* for the room objects, in an owner's account (cache.h); NULL: it has nothing cached */
    struct cache_person *cache_person; /* the same in a person's */
    unsigned n_idle_names;             /* for the room versions, in a person's account (shards.c) */
    struct account_share share;        /* for connections, in a person's account */
    uint64_t next_ids[ACCOUNT_IDS];    /* for ids.h, in an owner's account; 0: its next id begins a block */
};

/* What the present request found no room for. */
struct account_lack {
    struct account *at; /* of a client, an owner or the node; NULL: it found room, or the memory of the node is full */
    enum usage what;
    uint64_t amount; /* that is too much; 0: others wait for it, and come first */
    bool evicting;   /* amount 0: evictions make room for the first of these */
};

/* All accounts of the daemon. */
struct accounts {
    const struct events *events; /* NULL: no client watches events */
    struct account_limits limits;
    struct account node;
    /* The user id that stands for the person whose this one is. NULL: each is a person. */
    uint32_t (*person_of)(void *person_arg, uint32_t uid);
    void *person_arg;
    struct map by_owner;  /* key -> struct account of an owner */
    struct map by_person; /* key -> struct account of a person, whose owner.uid stands for the person */
    unsigned n_waiting;
    uint64_t n_waited;   /* waits for room since the daemon's start */
    struct list in_turn; /* persons with waiting requests; the one that got room last is last */
    const struct account_wait *trying;
    /* Whether the kernel lets the daemon have that much more heap (memory_room.h). NULL: it is not asked. */
    enum rdt_status (*heap_fits)(void *heap_arg, uint64_t bytes, struct rdt_error *err);
    void *heap_arg;
    /* Is called when the heap has become HEAP_FREED_BYTES smaller than its peak since the last call: malloc can give
     * memory back to the system. NULL: nobody is told. */
    void (*on_heap_freed)(void *heap_freed_arg);
    void *heap_freed_arg;
    uint64_t heap_peak;
    bool unlimited; /* no limit refuses anything: what an earlier daemon had here is being restored, or memory moves */
    /* Why the present request failed: the account that had no room (full), for what (full_of), and on
     * which device (full_on, NULL: a limit or the node's memory). full NULL: it did not fail for want of
     * room. */
    struct account *full;
    enum usage full_of;
    const void *full_on;
    struct account_lack lack; /* valid if full is not NULL */
};

/* A request that waits for room. Zeroed before its first use. */
struct account_wait {
    struct list link;
    struct account *at; /* the account where it waits, one reference; NULL: it does not wait */
    enum usage what;
    const void *on; /* as full_on: requests for one device do not wait behind those for another */
    bool called;
    bool postponed; /* it was called and postponed its attempt */
    bool evicting;  /* when it tried last, evictions were to make its room (cache.h) */
    /* There may be room: the owner of the wait tries again, between account_request_begin and
     * account_request_end, and not inside this call. Called once for each attempt. */
    void (*on_room)(struct account_wait *);
};

void accounts_init(struct accounts *accounts);
void accounts_fini(struct accounts *accounts);

/* Returns the account of an owner, with a reference for the caller. NULL: out of memory. */
struct account *account_get(struct accounts *accounts, const struct owner *owner);

/* The account of an owner, borrowed; NULL: there is none, so nothing is charged to it. */
struct account *accounts_find(const struct accounts *accounts, const struct owner *owner);

/* Creates the account of a client, with a reference for the caller. NULL: out of memory. */
struct account *account_get_client(struct accounts *accounts, const struct owner *owner, uint64_t client);

struct account *account_owner(struct account *account); /* the account of a client's owner; of another account itself */

/* The account of the person of a client or an owner; of another account itself. */
struct account *account_person(struct account *account);

#define ACCOUNT_WHOSE_BYTES 96

/* Returns text_p, which says in brackets that the owner counts as one user with another user id; "" if that is its own. */
const char *account_whose(struct account *account, char text_p[ACCOUNT_WHOSE_BYTES]);

#define ACCOUNT_FULL_BYTES 192

/* Returns whether at most a sixth of the account's limit is left; no user can have the last eighth of a node's. text_p says how
 * much is used, and what to raise. */
bool account_is_full(const struct account *account, enum usage what, char text_p[ACCOUNT_FULL_BYTES]);

struct account *account_ref(struct account *account); /* returns its argument */
void account_unref(struct account *account);          /* accepts NULL */

/* Charges the account and those above it. LIMIT: nothing is charged, and the error names the limit, its
 * value, whose it is and the key to raise. While earlier requests wait for the same in that account, there
 * is no room for later ones. */
enum rdt_status account_take(struct account *account, enum usage what, uint64_t n, struct rdt_error *err);
void account_give(struct account *account, enum usage what, uint64_t n);

/* The same for several things, all or nothing. want is [USAGE_COUNT]. */
enum rdt_status account_take_all(struct account *account, const uint64_t *want, struct rdt_error *err);
void account_give_all(struct account *account, const uint64_t *had);

/* A client's charges, which those above it have as well, are from now on its owner's only. */
void account_give_to_owner(struct account *client, const uint64_t *had);

/* Undoes a charge of a moment ago that nobody can have noticed, so no waiting request is called. Otherwise
 * two waiting requests that fail for another reason would wake each other for ever. */
void account_undo(struct account *account, const uint64_t *had);

/* Whether account_take would succeed, without charging. */
enum rdt_status account_check(struct account *account, enum usage what, uint64_t n, struct rdt_error *err);

/* Charges without a check: for what cannot be refused any more, or is bounded elsewhere. */
void account_add(struct account *account, enum usage what, uint64_t n);

/* ---- waiting for room ---- */

/* The present request failed because the node, not a limit, has no room: its memory, or that of the device
 * `on`, which is only compared. */
void account_node_is_full(struct account *account, enum usage what, const void *on);

/* The same for what the node's account counts: so much of it is too much. */
void account_node_lacks(struct account *account, enum usage what, uint64_t amount);

/* The node, or the device `on`, has room again: the owners that wait for it try in turn. */
void account_room_freed(struct accounts *accounts, enum usage what, const void *on);

/* Limits have changed: requests that wait for room try again. account: of a client. */
void account_limits_changed(struct account *account);
void accounts_limits_changed(struct accounts *accounts);

/* Whether an earlier request of the account's owner, other than the one that tries now, waits for room on
 * that device. Later requests then wait, too. */
bool account_waits_for(const struct account *account, enum usage what, const void *on);

/* An attempt to serve a request begins. When it has failed, accounts->full says whether that was for want
 * of room. */
void account_request_begin(struct accounts *accounts, const struct account_wait *wait);

/* The attempt has ended. wait, if not NULL: the request waits for room at accounts->full, or keeps its
 * place there. */
void account_request_end(struct accounts *accounts, struct account_wait *wait);

/* The wait was called, but cannot try yet: later ones may try before it. Does nothing if it was not
 * called. */
void account_wait_postpone(struct account_wait *wait);

/* The request waits no more and does not try: the next one is called. Does nothing if it was not waiting. */
void account_wait_end(struct accounts *accounts, struct account_wait *wait);

/* Heap of one message up to this is not charged. */
static inline uint64_t account_uncounted_bytes(const struct account *account)
{
    return account->accounts ? account->accounts->limits.uncounted_bytes : 0;
}

const char *usage_name(enum usage what);

#endif
