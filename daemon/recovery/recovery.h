/* SPDX-License-Identifier: Apache-2.0 */
/* The room of recovery: what survives the end of this process, planned or not, and what an earlier process left.
 *
 * Owns: the journal (journal.h), which has a record of every object and name that outlasts this process
 * (objects/lasting.h), of the regions in which those objects lie, and of each client's session: its regions, its holds with
 * and without data, and the names of which it is the lease; and the link to the keeper (keeper_link.h), a process of our own
 * that holds the descriptors of those regions and of the journal while no daemon runs.
 *
 * Shows: this header.
 *
 * Refuses: to know connections, requests and peers. What a client has cached is not recorded: regions that it has released
 * and kept mapped, and regions of others that it maps without a hold. Memory on devices is kept if the daemon allocated it and
 * one descriptor stands for it. Holds across nodes are recorded: those on objects of other nodes, which whoever knows peers
 * takes again, and those of other nodes on objects here, which wait for their nodes.
 *
 *   HELLO                          the session's record: who it is, and a hash of its token
 *   a client gets a region         its descriptor goes to the keeper, then its record is written, which names the session
 *   a put, or a published or       its regions' records, then its own, which has the session and the number of the put;
 *   detached object                all of it before the request is answered
 *   a fetch, a HOLD                a record of the hold, and of the object, if it has none
 *   something changes              numbers and flags in the record change in place
 *   it ends                        its record is removed; the keeper drops the region
 *
 *   start      the keeper greets ──► no journal: a new one ──────────────────────────────► SERVING
 *                              └──► a journal: its version is not ours: the start is refused
 *                                              it crashed the daemon RECOVERY_ATTEMPTS times: set aside, a new one
 *                                              sessions, regions, objects, names and holds are made again
 *                                              ──► SERVING
 *   SIGTERM    recovery_close: from now on nothing is recorded, so the next daemon finds all that is here
 *
 * A session that was restored waits for its client, as its connection says (conn.h):
 *
 *   RECORDED ──► WAITING ── HELLO with the token ──► RESUMED ── RESUME: what the client does not list ends ──► served
 *                   └── its process has ended, or cannot be watched and restart_grace passes ──► it ends as its client would
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_RECOVERY_H
#define DAEMON_RECOVERY_H

#include "daemon/objects/client.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "daemon/plugins/plugin.h"
#include "daemon/recovery/keeper_link.h"
#include "rdt_journal.pb-c.h"

#define RECOVERY_ATTEMPTS 5u /* starts in a row that did not survive the reading of the journal */

struct journal;

#define SESSION_TOKEN_BYTES 16u

/* What is recorded of a session, beside what struct client has. */
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

/* A hold of a restored session on an object of another node. It is the hold's `far`, so it is freed with the hold. Whoever
 * takes the hold again sets another release_far. */
struct far_record {
    struct list link; /* in recovery->far_holds; then it belongs to whoever takes the hold again */
    struct client *client;
    uint64_t request_id;
    uint8_t node[16]; /* where the object is */
    void *taker;      /* for whoever takes the hold again */
    size_t ref_bytes;
    uint8_t ref[]; /* a packed Rdt__Pb__Ref */
};

/* A hold that another node has on an object of this node. */
struct node_hold_image {
    uint8_t node[16], boot_id[16]; /* of the holder */
    const char *address;           /* where to dial it; "": only it dials */
    uint64_t number;
    struct owner owner;
};

/* One that an earlier daemon has left. Whoever takes it over takes its charge, its reference to the account and its record, and
 * drops its hold on the object. */
struct node_hold_record {
    struct list link; /* in recovery->node_holds */
    struct node_hold_image image;
    char address[65];
    struct account *account; /* a reference, charged for the hold; NULL: somebody has taken it over */
    struct object *object;   /* with a hold */
    void *record;
};

/* A group that an earlier daemon coordinated. Whoever takes it over frees it by recovery_free_group. */
struct kept_group {
    struct list link; /* in recovery->groups */
    Rdt__Pb__JournalGroup *group;
    uint32_t epoch;
    void *record;
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
    bool frozen;             /* nothing is recorded any more */
    struct map kept_regions; /* id -> struct region, with a record */
    struct list far_holds;   /* struct far_record.link */
    struct list node_holds;  /* struct node_hold_record.link */
    struct list groups;      /* struct kept_group.link */
    struct map sessions;     /* id -> struct client: those with a record */
    struct map published;    /* session id -> struct published: of sessions with a record, what their last PUBLISHes did */
    struct map filling;      /* generation -> request id of the put of a snapshot that is being copied, and has no record */
    uint64_t kept_bytes;     /* of those regions */
    uint64_t n_objects, n_names, n_sessions, n_holds; /* with a record */
    uint64_t n_restored;                              /* objects that this daemon found at its start */
    uint64_t n_restored_sessions;
    uint64_t n_lost; /* objects whose record could not be written or restored */
};

/* Connects to recovery->keeper, whose fields above have been set, and makes again what an earlier daemon had. Blocks for
 * some seconds at most, and for about 10 microseconds an object. With an empty state_dir the node gets the uuid of the
 * earlier daemon. Nothing may have been put or published before. Errors, which end the start: DISCONNECTED, BUSY, PROTOCOL
 * (the keeper); UNSUPPORTED (the journal's version); INVALID (the journal is of another node, or its header is damaged);
 * NO_MEMORY, SYSTEM. */
enum rdt_status recovery_start(struct recovery *recovery, uv_loop_t *loop, bool may_take_uuid, struct rdt_error *err);

/* Where the first session id that no daemon has used is stored; NULL: nothing is kept. */
uint64_t *recovery_session_ids(struct recovery *recovery);

/* Records the session of a client that was greeted, which has nothing yet. false: it will end with this process. */
bool recovery_keep_session(struct recovery *recovery, struct client *client, const struct session_image *image);
void recovery_end_session(struct recovery *recovery, struct client *client); /* does nothing if it has no record */

/* Records a hold of another node on the object, which is live. NULL: it will end with this process. */
void *recovery_keep_node_hold(struct recovery *recovery, const struct node_hold_image *image, struct object *object);
void recovery_end_node_hold(struct recovery *recovery, void *record); /* record NULL: does nothing */

/* For the start: a hold of the client (remote_hold.h) on an object of another node, which is taken again when that node can be
 * asked. false: no memory. */
bool recovery_await_far_hold(struct recovery *recovery, struct client *client, uint64_t request_id, const Rdt__Pb__Ref *ref);

/* Whether what ends from now on is there again in the next daemon. */
bool recovery_is_frozen(const struct recovery *recovery);

/* Removes it from the list, gives back what it has, and frees it. Its record stays. */
void recovery_free_node_hold(struct node_hold_record *hold);

/* Records a group. Its epoch is changed by recovery_set_epoch, before anybody is told of the new one. record NULL: does
 * nothing. */
void *recovery_keep_group(struct recovery *recovery, const Rdt__Pb__JournalGroup *group, uint64_t number, uint32_t epoch);
void recovery_set_epoch(struct recovery *recovery, void *record, uint32_t epoch);
void recovery_end_group(struct recovery *recovery, void *record);
void recovery_free_group(struct kept_group *group); /* its record stays */

/* The daemon will end: sessions that outlast it leave what it cannot answer any more to the next one. */
void recovery_drain(struct recovery *recovery);

/* The daemon ends: what is recorded now stays for the next one, whatever happens to the objects here. Ends the link to the
 * keeper. The loop must still run. */
void recovery_close(struct recovery *recovery);
void recovery_fini(struct recovery *recovery);

struct recovery_counts {
    bool keeper_up;
    uint64_t objects, names, sessions, holds, bytes, restored, restored_sessions, lost;
};
struct recovery_counts recovery_counts(const struct recovery *recovery);

#endif
