/* Who has what: one account for each client, above it one for each owner that has anything here, above those the node's. Objects,
 * regions, requests and transfers point to the account of the client they are for (of the owner, if another node asks), and an account
 * is gone with the last who refers to it: what a client leaves behind stays counted.
 *
 *   node <-- owner (tenant, uid) <-- client
 *
 * What is limited is charged to all three at once, before anything is done, and refused as a whole if one of them has no room. Who wants
 * to wait for room queues at the account that had none, and comes in turn; what the node lacked its owners get in turn, whoever has more
 * requests waiting; for a large piece nothing is kept free meanwhile, and account.c says why.
 *
 * Loop thread only.
 */
#ifndef DAEMON_ACCOUNT_H
#define DAEMON_ACCOUNT_H

#include "daemon/base/events.h"
#include "daemon/base/list.h"
#include "daemon/base/map.h"
#include "daemon/base/owner.h"
#include "daemon/base/usage.h"
#include "rdt_status.h"

struct account_limits { /* 0: none */
    uint64_t client[USAGE_COUNT], owner[USAGE_COUNT], node[USAGE_COUNT];
};

struct account {
    struct owner owner;
    uint8_t key[4 + sizeof((struct owner *)0)->tenant];
    uint32_t refs;
    uint64_t client;           /* session id; 0: an owner's, or the node's */
    struct account *parent;    /* a reference; NULL: the node's, or one that a test made */
    const uint64_t *limits;    /* [USAGE_COUNT], borrowed; NULL: none */
    struct accounts *accounts; /* NULL: in no table, the one who made it frees it */
    uint64_t used[USAGE_COUNT];
    struct list waiting[USAGE_COUNT]; /* struct account_wait.link: for room here, first come first; not the node's */
    struct list in_turn;              /* accounts->in_turn: an owner's, while somebody waits here */
    unsigned n_waiting;
    uint64_t dialled_ns; /* of the room peers, an owner's: until when its dials of unlisted addresses use up its rate */
};

struct accounts {
    const struct events *events; /* NULL: nobody watches */
    struct account_limits limits;
    struct account node;
    struct map by_owner; /* key -> struct account, of owners */
    unsigned n_waiting;
    struct list in_turn; /* owners that wait: who got room last comes last */
    const struct account_wait *trying;
    struct account *full; /* why the last request failed: where there was no room, and of what; NULL: it did not */
    enum usage full_of;
    const void *full_at; /* the device that had none; NULL: a limit, or the node */
};

/* Somebody who waits for room. Zeroed before its first use. */
struct account_wait {
    struct list link;
    struct account *at; /* where; a reference; NULL: not waiting */
    enum usage what;
    const void *on; /* as full_at: who waits for one device is not before those who want another */
    bool called;
    bool passed; /* over: it was called, and tries only later */
    /* There may be room: try again, between account_try and account_tried; not inside this call. Once until then. */
    void (*on_room)(struct account_wait *);
};

void accounts_init(struct accounts *accounts);
void accounts_fini(struct accounts *accounts);

/* The owner's, with a reference for the caller. NULL: no memory. */
struct account *account_get(struct accounts *accounts, const struct owner *owner);

/* A new one for a client of that owner, with a reference for the caller. NULL: no memory. */
struct account *account_get_client(struct accounts *accounts, const struct owner *owner, uint64_t client);

struct account *account_ref(struct account *account); /* returns it */
void account_unref(struct account *account);          /* NULL is fine */

/* Charges it and those above. LIMIT: nothing is charged, and the sentence says which limit, whose, its value and the key to raise. While
 * somebody waits there for the same, there is none for those who come later. */
enum rdt_status account_take(struct account *account, enum usage what, uint64_t n, struct rdt_error *err);
void account_give(struct account *account, enum usage what, uint64_t n);

/* The same for several things, all or nothing: want is [USAGE_COUNT]. */
enum rdt_status account_take_all(struct account *account, const uint64_t *want, struct rdt_error *err);
void account_give_all(struct account *account, const uint64_t *had);

/* What was taken a moment ago comes to nothing, before anybody could miss it: nobody is told that there is room. Two who wait and fail for
 * another reason would else wake each other for ever. */
void account_take_back(struct account *account, const uint64_t *had);

/* Would it be charged? */
enum rdt_status account_check(struct account *account, enum usage what, uint64_t n, struct rdt_error *err);

/* Charges without asking: what cannot be refused any more, or is bounded elsewhere. */
void account_add(struct account *account, enum usage what, uint64_t n);

/* ---- waiting for room ---- */

/* There is no room in the node for another reason than these limits: its memory, or (`on`, which is only compared) that of a device. */
void account_node_is_full(struct account *account, enum usage what, const void *on);

/* There is room of the kind in the node, or on that device, again: the owners that wait for it try in turn. */
void account_room(struct accounts *accounts, enum usage what, const void *on);

/* Somebody of the owner waits for room on that device, and it is not who tries now: whoever comes later waits, too. */
bool account_waits_for(const struct account *account, enum usage what, const void *on);

/* A request begins; afterwards accounts->full tells whether it failed for want of room. */
void account_try(struct accounts *accounts, const struct account_wait *wait);

/* It has ended. wait: it waits, or goes on waiting in its place, for accounts->full. */
void account_tried(struct accounts *accounts, struct account_wait *wait);

/* It was called and cannot try yet: those after it need not wait for that, and it tries when it can. Nothing if it was not called. */
void account_pass(struct account_wait *wait);

/* It waits no more, nor does it try: the next one is called. Nothing if it did neither. */
void account_wait_end(struct accounts *accounts, struct account_wait *wait);

const char *usage_name(enum usage what);

#endif
