/* SPDX-License-Identifier: Apache-2.0 */
/* The room of recovery: what survives the end of this process, planned or not, and what an earlier process left.
 *
 * Owns: the journal (journal.h), which has a record of every object and name that outlasts the sessions of clients
 * (objects/lasting.h) and of the regions in which those objects lie; and the link to the keeper (keeper_link.h), a process
 * of our own that holds the descriptors of those regions and of the journal while no daemon runs.
 *
 * Shows: this header.
 *
 * Refuses: to know clients, requests and peers. Sessions end with the daemon, and so do objects that only a session holds.
 * Memory on devices is not kept.
 *
 *   object begins to last          its regions' descriptors go to the keeper, then their records and its own are written;
 *                                  all of it before the request is answered
 *   why it lasts changes           numbers in its record change in place
 *   it ends, or only a session     its record is removed; regions that no other record names are dropped by the keeper
 *   holds it
 *
 *   start      the keeper greets ──► no journal: a new one ──────────────────────────────► SERVING
 *                              └──► a journal: its version is not ours: the start is refused
 *                                              it crashed the daemon RECOVERY_ATTEMPTS times: set aside, a new one
 *                                              regions, objects and names are made again ──► SERVING
 *   SIGTERM    recovery_freeze: from now on nothing is recorded, so the next daemon finds all that is here
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_RECOVERY_H
#define DAEMON_RECOVERY_H

#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "daemon/plugins/plugin.h"
#include "daemon/recovery/keeper_link.h"

#define RECOVERY_ATTEMPTS 5u /* starts in a row that did not survive the reading of the journal */

struct journal;

struct recovery {
    const char *keeper; /* the keeper's socket; "": nothing is kept */
    struct node *node;
    struct accounts *accounts;
    struct plugins *plugins;
    struct regions *regions;
    struct object_table *objects;
    struct names *names;
    struct deadlines *deadlines;

    /* The rest belongs to this room. */
    struct keeper_link link;
    struct journal *journal; /* NULL: nothing is kept */
    struct lasting lasting;
    struct map kept_objects; /* generation -> struct kept_object */
    struct map kept_regions; /* id -> struct kept_region */
    uint64_t kept_bytes;     /* of those regions */
    uint64_t n_names;        /* with a record */
    uint64_t n_restored;     /* objects that this daemon found at its start */
    uint64_t n_lost;         /* objects whose record could not be written or restored */
};

/* Connects to recovery->keeper, whose fields above have been set, and makes again what an earlier daemon had. Blocks for
 * some seconds at most, and for about 10 microseconds an object. With an empty state_dir the node gets the uuid of the
 * earlier daemon. Nothing may have been put or published before. Errors, which end the start: DISCONNECTED, BUSY, PROTOCOL
 * (the keeper); UNSUPPORTED (the journal's version); INVALID (the journal is of another node, or its header is damaged);
 * NO_MEMORY, SYSTEM. */
enum rdt_status recovery_start(struct recovery *recovery, uv_loop_t *loop, bool may_take_uuid, struct rdt_error *err);

/* The daemon ends: what is recorded now stays for the next one, whatever happens to the objects here. */
void recovery_freeze(struct recovery *recovery);

/* Ends the link to the keeper. The loop must still run. */
void recovery_close(struct recovery *recovery);
void recovery_fini(struct recovery *recovery);

struct recovery_counts {
    bool keeper_up;
    uint64_t objects, names, bytes, restored, lost;
};
struct recovery_counts recovery_counts(const struct recovery *recovery);

#endif
