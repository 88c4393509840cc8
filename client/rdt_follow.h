/* SPDX-License-Identifier: Apache-2.0 */
/* Following a name: the daemon of this node fetches each new version while the reader works, so that the reader's pause for it
 * is one local copy. rdt.h does not include this header.
 *
 *     rdt_follow(c, &name, NULL, &follower, &err);
 *     for (;;) {
 *         ...                                                         the engine works; the daemon fetches
 *         rdt_follower_prepare(follower, 0, &prepared, &err);         TIMED_OUT: no newer version is here yet
 *         rdt_follower_commit(follower, &options, &commit, &err);     copies into the engine's memory, and waits for nobody
 *     }
 *
 * rdt_follower_prepare returns when the newest version above the committed one is whole on this node, and is mapped into this
 * process. What came from another node was checked as a fetch checks it (rdt-concepts(7), CHECKSUMS): objects so small that
 * they come within an answer, and those without a checksum, by their transport alone; objects of this node are not checked at
 * all. From then on nobody is needed for it: neither its publisher, nor another node, nor the daemon. Versions that were
 * replaced meanwhile are dropped unseen. rdt_follower_commit checks first and then copies all of that one version, so memory of
 * the reader never holds a mixture of two versions, unless its process ends within the copy.
 *
 * Names of single objects and of versions in parts (rdt_plan.h) can be followed; the objects must be snapshots. If the
 * publisher is on this node, there is nothing to fetch, and the follower maps the publisher's snapshot.
 *
 * All followers of a name on one node that belong to one user share one copy. The daemon has at most two versions for them: the
 * newest that is whole, and the next, which is being fetched; beside these, a version that a follower has prepared stays until
 * it commits, prepares another, or ends. A process unmaps what it has copied in its next prepare. The bytes of these versions
 * are charged to the user of the followers, once however many there are, under the limit owner_max_followed_bytes. A next
 * version that does not fit beside the present one waits until a follower has committed that one, which then makes room; one
 * that does not fit alone is not fetched, and prepare says so with LIMIT.
 *
 * The daemon fetches whole versions. A reader that needs only boxes of it, such as one rank of several, commits by a plan: the
 * mapping costs nothing, and only the boxes are read.
 *
 * A follower ends with its session, and costs others nothing. If the daemon is killed, what is prepared can still be committed.
 * If it ran under a keeper (rdtd-keeper(8)), the session goes on with the next daemon, and so does the next prepare, with the
 * newest version; without a keeper the session has ended, and prepare says DISCONNECTED. One thread at a time may use a
 * follower. */
#ifndef RDT_FOLLOW_H
#define RDT_FOLLOW_H

#include "rdt_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rdt_follower rdt_follower;

struct rdt_follow_options {
    size_t struct_size;
    /* The version that the reader has already, by its number; 0: none. The node of a name counts anew after its daemon has
     * ended without a keeper: a number above the newest version's is of an earlier count, and is not believed. */
    uint64_t after;
};

/* Begins to follow the name, a ref of rdt_ref_from_name or rdt_publish, whose `after` is ignored. Nobody need have published
 * anything under it yet. options may be NULL. The caller ends *follower_p with rdt_follower_close, before rdt_close. Errors:
 * INVALID (the ref of an object; an address that is neither HOST:PORT nor a name in the nodes file), LIMIT (owner_max_holds,
 * or 256 followers of this session), NO_MEMORY, UNSUPPORTED (the daemon is of a version that does not follow, or the name is on
 * another node and the daemon has no link to other nodes). */
enum rdt_status rdt_follow(rdt *rdt, const struct rdt_ref *name, const struct rdt_follow_options *options,
                           rdt_follower **follower_p, struct rdt_error *err);

struct rdt_prepared {
    uint64_t version;
    uint64_t step;        /* of a version in parts; 0: it is a single object */
    size_t objects;       /* its parts, or 1 */
    uint64_t bytes;       /* of all its tensors */
    uint64_t bytes_moved; /* that came from other nodes, for all followers of this node together */
    uint64_t skipped;     /* versions between the committed one and this one, which this reader never sees */
    int64_t wait_ns;      /* how long this call has waited for the daemon */
    int64_t fetch_ns;     /* the daemon's time from when it knew of the version until it was whole here */
    bool in_parts;        /* it was published in parts: commit by a plan */
};

/* Waits until timeout_ns for a version above the committed one that is whole on this node. If there are several, it is the
 * newest: a version that was prepared before and has not been committed may be replaced by a newer one, and stays prepared
 * after an error. *prepared_p, may be NULL, describes it. Errors: TIMED_OUT (no such version is whole here; the sentence says
 * what the daemon is doing, or why the last attempt failed), FREED (the name was unpublished: said once, and only when no
 * version that was whole here by then is left to commit; the follower goes on with what is published later), UNSUPPORTED (the
 * version is not a snapshot), LIMIT (it does not fit: the sentence names the limit; or too many requests wait), DENIED,
 * NO_MEMORY (of this process, or of the daemon, which goes on trying), BUSY (another thread waits with this follower), INVALID
 * (the version cannot be read), SHUTTING_DOWN, DISCONNECTED. With timeout_ns 0 the call does not wait for a version, but for
 * the answer of the daemon, and to map a version that is here: at most a minute. */
enum rdt_status rdt_follower_prepare(rdt_follower *follower, int64_t timeout_ns, struct rdt_prepared *prepared_p,
                                     struct rdt_error *err);

/* Object i of the prepared version, mapped for reading: a part, or the single object. Borrowed until the version is committed,
 * another one is prepared, or the follower is closed. NULL: nothing is prepared, or there is no such object. */
const rdt_object *rdt_follower_object(const rdt_follower *follower, size_t i);

/* The same object as one of the caller's own, who ends it with rdt_release: for what must be made of it before a commit, which
 * then takes nothing but the mark. NULL: as above. */
rdt_object *rdt_follower_take(rdt_follower *follower, size_t i);

struct rdt_commit_options { /* at most one of plan, targets and objects is set; none: only marks the version as committed */
    size_t struct_size;
    rdt_plan *plan;                   /* of the same name: its wants are written. The version must be in parts */
    const struct rdt_tensor *targets; /* [n_targets] for a single object, as of rdt_fetch: equal shapes and dtypes, contiguous
                                       * memory of the host, or of a device as of a plan's want; no two overlap */
    size_t n_targets;
    rdt_object **objects; /* [prepared.objects] receives the objects themselves, as a fetch with RDT_FETCH_SHARE would; the
                           * caller ends each with rdt_release */
};

struct rdt_commit {
    uint64_t version, step;
    uint64_t bytes;       /* that were copied */
    uint64_t bytes_moved; /* as in struct rdt_prepared, of this version; likewise the times */
    int64_t wait_ns;      /* of all calls of rdt_follower_prepare since the last commit */
    int64_t fetch_ns;
    int64_t copy_ns; /* how long this call has copied */
};

/* Makes the prepared version the committed one, after its bytes have been copied to where the options say. Moves nothing
 * between nodes, does not wait for the daemon, and does not end before all is copied. A plan with `verify` does wait: the parts
 * that it reads are compared with their checksums, for which their publishers' daemons are asked, for up to a minute, and a
 * part that is gone there has none. An error leaves the reader's memory and the follower unchanged. *commit_p may be NULL.
 * Errors: INVALID (nothing is prepared; the options), NOT_FOUND and MISMATCH (the version does not fit the plan or the targets;
 * the sentence names the tensor), UNSUPPORTED (a cast that does not exist); NO_MEMORY; CANCELLED while streams of the plan are
 * waited for; with `verify` those of rdt_verify. Only SYSTEM, of a device that fails while it is written, may leave a part in
 * the wants; the version then stays prepared. */
enum rdt_status rdt_follower_commit(rdt_follower *follower, const struct rdt_commit_options *options,
                                    struct rdt_commit *commit_p, struct rdt_error *err);

struct rdt_follower_info {
    uint64_t committed, prepared; /* versions; 0: none. prepared: whole on this node, and newer than the committed one */
    uint64_t newest;              /* the newest version that the daemon knows of */
    uint64_t lag;                 /* newest - committed */
    int64_t lag_ns;               /* for how long the daemon has known of the newest version; 0: that is the committed one */
    char state[16];               /* of the daemon: "seeking", "fetching", "full" (waits for room), "waiting" (to try again) */
    char failure[256];            /* of the last attempt to fetch a version; "": it went well */
};
enum rdt_status rdt_follower_info(rdt_follower *follower, struct rdt_follower_info *info_p, struct rdt_error *err);

/* Ends the follower. What it has prepared is released; objects that a commit handed out stay the caller's. follower may be
 * NULL. */
void rdt_follower_close(rdt_follower *follower);

#ifdef __cplusplus
}
#endif
#endif
