/* SPDX-License-Identifier: Apache-2.0 */
/* The place in the keeper's memory: records the state that must survive the end of this process, planned or not.
 *
 * Owns: the journal (journal.h), which has a record of every object and name that survives this process
 * (objects/lasting.h), of the regions in which those objects lie, and of each client's session: its regions, its holds with
 * and without data, and the names of which it is the lease; and the link to the keeper (keeper_link.h), a separate process
 * that holds the descriptors of those regions and of the journal while no daemon runs.
 *
 * Refuses: to know connections, requests and peers. A client's caches are not recorded: regions that it has released and kept
 * mapped, and regions of others that it maps without a hold. Memory on devices is kept if the daemon allocated it and has one
 * descriptor for it, or if a client imported it. Holds across nodes are recorded: holds on objects of other nodes, which a room
 * above takes again, and holds of other nodes on objects here, which wait for their nodes.
 *
 *   HELLO                          the session's record: its owner and process, and a hash of its token
 *   a client gets a region         its descriptor is sent to the keeper, then its record is written, which names the session
 *   a put, or a published or       its regions' records, then its own, which has the session and the number of the put;
 *   detached object                all of it before the request is answered
 *   a fetch, a HOLD                a record of the hold, and of the object, if it has none
 *   something changes              numbers and flags in the record change in place
 *   something ends                 its record is removed; the keeper drops the region
 *
 *   start      the keeper greets ──► no journal: a new one
 *                              └──► a journal: it cannot be read: set aside, a new one
 *                                              it crashed the daemon RECOVERY_ATTEMPTS times: set aside, a new one
 *                                              a record crashed the daemon at the last start: it is lost
 *                                              otherwise it is restored (persist.h)
 *   SIGTERM    recovery_close: from now on the journal does not change, so the next daemon finds everything that is in it
 *
 * A restored session waits for its client (conn.h):
 *
 *   RECORDED ──► WAITING ── HELLO with the token ──► RESUMED ── RESUME: what the client does not list ends ──► served
 *                   └── its process has ended, or cannot be watched and restart_grace passes ──► it ends as its client would
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_RECOVERY_H
#define DAEMON_RECOVERY_H

#include "daemon/base/log.h"
#include "daemon/objects/client.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "daemon/persist/keeper_link.h"
#include "daemon/plugins/plugin.h"
#include "rdt_persist.pb-c.h"

#define RECOVERY_ATTEMPTS 5u /* consecutive starts that ended while they read the journal */

struct journal;

#define SESSION_TOKEN_BYTES 16u

/* The recorded properties of a session that struct client does not have. */
struct session_image {
    uint64_t id;
    struct owner owner;
    uint32_t gid;
    int32_t pid;
    uint64_t started; /* /proc/PID/stat, field 22, of its process; 0: unknown */
    uint8_t token_sha256[32];
    char name[65];
    bool tensor_runs;
};

/* A hold of a restored session on an object of another node. It is the hold's `far`, so it is freed with the hold. The room
 * that takes the hold again sets another release_far. */
struct far_record {
    struct list link; /* in recovery->far_holds; then it belongs to the room that takes the hold again */
    struct client *client;
    uint64_t request_id;
    uint8_t node[16]; /* where the object is */
    void *taker;      /* for that room's use */
    size_t ref_bytes;
    uint8_t ref[]; /* a packed Rdt__Pb__Ref */
};

/* A hold that another node has on an object of this node. */
struct node_hold_image {
    uint8_t node[16], boot_id[16]; /* of the holder */
    const char *address;           /* where to dial it; "": only it dials */
    uint64_t number;
    uint64_t transit_until_ns; /* of a ref that it took over, until the holder has read that; 0: it has, or there is none */
    struct owner owner;
};

/* Such a hold of an earlier daemon. Taking it over means taking its charge, its reference to the account and its record, and
 * dropping its hold on the object. */
struct node_hold_record {
    struct list link; /* in recovery->node_holds */
    struct node_hold_image image;
    char address[65];
    struct account *account; /* a reference, charged for the hold; NULL: the hold has been taken over */
    struct object *object;   /* with a hold */
    void *record;
};

/* A group that an earlier daemon coordinated. The room that takes it over frees it by recovery_free_group. */
struct kept_group {
    struct list link; /* in recovery->groups */
    Rdt__Pb__JournalGroup *group;
    uint32_t epoch;
    void *record;
};

struct recovery_counts {
    uint64_t objects, names, sessions, holds; /* with a record */
    uint64_t bytes;                           /* of regions with a record */
    uint64_t restored, restored_sessions;     /* objects and sessions that this daemon restored at its start */
    uint64_t lost;                            /* objects and names whose record could not be written or restored */
};

struct recovery {
    const char *keeper; /* the keeper's socket; "": nothing is kept */
    struct node *node;
    struct accounts *accounts;
    struct plugins *plugins;
    struct regions *regions;
    struct object_table *objects;
    struct names *names;
    struct deadlines *deadlines;
    /* Makes a client without a connection, which waits for its process. NULL: no memory. */
    struct client *(*restore_session)(void *arg, const struct session_image *image);
    void *restore_arg;
    /* Takes again the holds on the parts of the version that this object, which is live, is the manifest of. */
    void (*restore_manifest)(void *arg, struct object *object);
    void *manifest_arg;

    /* The rest belongs to this room. */
    struct keeper_link link;
    struct journal *journal; /* NULL: nothing is kept */
    struct lasting lasting;
    bool frozen;             /* changes are no longer recorded */
    struct map kept_regions; /* id -> struct region, with a record */
    struct list far_holds;   /* struct far_record.link */
    struct list node_holds;  /* struct node_hold_record.link */
    struct list groups;      /* struct kept_group.link */
    struct map sessions;     /* id -> struct client: those with a record */
    struct map published;    /* session id -> struct published: effects of the last requests of sessions with a record */
    struct map filling;      /* generation -> request id of the put of a snapshot that is being copied, and of an object whose
                              * record is being written again */
    struct recovery_counts counts;
    struct log_rare no_room; /* in the journal */
};

/* Returns where the first unused session id is stored; NULL: nothing is kept. */
uint64_t *recovery_session_ids(struct recovery *recovery);

/* Records the session of a client that was just greeted. false: the session will end with this process. */
bool recovery_keep_session(struct recovery *recovery, struct client *client, const struct session_image *image);
void recovery_end_session(struct recovery *recovery, struct client *client); /* does nothing if it has no record */

/* Records a hold, charged to that account, of another node on the object, which is live. NULL: it ends with this process. */
void *recovery_keep_node_hold(struct recovery *recovery, struct account *account, const struct node_hold_image *image,
                              struct object *object);
/* The holder has read that it has the hold. record NULL: does nothing, here and below. */
void recovery_node_hold_seen(struct recovery *recovery, void *record);
void recovery_end_node_hold(struct recovery *recovery, struct account *account, void *record);

/* For the start: a hold of the client (remote_hold.h) on an object of another node, which is taken again when that node can be
 * asked. false: no memory. */
bool recovery_await_far_hold(struct recovery *recovery, struct client *client, uint64_t request_id, const Rdt__Pb__Ref *ref);

/* Whether the journal is frozen: things that end from now on exist again in the next daemon. */
bool recovery_is_frozen(const struct recovery *recovery);

/* Removes the hold from the list, releases everything that it has, and frees it. Its record stays. */
void recovery_free_node_hold(struct node_hold_record *hold);

/* Records a group, whose record is charged to that account. Its epoch is changed by recovery_set_epoch, before anybody is told
 * of the new one. record NULL: does nothing. */
void *recovery_keep_group(struct recovery *recovery, struct account *account, const Rdt__Pb__JournalGroup *group,
                          uint64_t number, uint32_t epoch);
void recovery_take_group(struct account *account, const struct kept_group *kept); /* charges a restored group's record */
void recovery_set_epoch(struct recovery *recovery, void *record, uint32_t epoch);
void recovery_end_group(struct recovery *recovery, struct account *account, void *record);
void recovery_free_group(struct kept_group *group); /* its record stays */

/* The daemon will end: the next daemon will answer the open requests of sessions that survive. */
void recovery_drain(struct recovery *recovery);

/* The daemon ends: the present records stay for the next one, whatever happens to the objects here. Ends the link to the
 * keeper. The loop must still run. */
void recovery_close(struct recovery *recovery);
void recovery_fini(struct recovery *recovery);

struct recovery_counts recovery_counts(const struct recovery *recovery); /* all 0 if nothing is kept */
bool recovery_keeper_is_up(const struct recovery *recovery);

#endif
