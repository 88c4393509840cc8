/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for many objects or names at once. rdt.h does not include this header.
 *
 * Thousands of small things take one message each way, and each has a status of its own: what is wrong with one of them does
 * not stop the others. Every call here takes any number of things; librdt sends as many messages as they need. Where a call
 * has statuses_p [count], it receives the status of each, in the order of the things. The call itself returns RDT_OK if that of
 * each is RDT_OK, and otherwise the status of the first that is not, whose sentence is in err; a comment says so where a call
 * differs. statuses_p is written unless the call fails as a whole: INVALID (NULL, or a malformed thing, which err names by its
 * number), NO_MEMORY, DISCONNECTED, RESTARTED, FORKED. rdt_exists, rdt_fetch_each and rdt_wait_each always write it: how the
 * call failed as a whole (also LIMIT, TIMED_OUT, UNSUPPORTED) is then the status of each of which nothing else is known. */
#ifndef RDT_MANY_H
#define RDT_MANY_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- put ---- */

struct rdt_value {
    const struct rdt_tensor *tensors; /* [count] */
    size_t count;
    const void *id; /* as in rdt_put_options; NULL: generated */
    size_t id_bytes;
    const void *metadata; /* the same */
    size_t metadata_bytes;
};

/* Puts values [count], each as an object of its own, with the same options: their id, metadata, how and shards are NULL.
 * refs_p [count] receives the refs. Objects of up to 32 KiB whose bytes rdt_put would copy into the message travel together, a
 * few hundred in a message, by memory that is used again. They are what rdt_put makes of them: each can be freed by itself, and
 * its memory is free again then. Larger snapshots (SNAPSHOT without UNSEALED) are put by a message each, up to 32 at a time:
 * the daemon copies them out of memory from rdt_alloc, or out of memory of this call if they take at most 4 MiB. So are live
 * and IMMUTABLE objects, without a copy, in memory that the daemon knows, such as blocks of one range of rdt_cuda_offer. Every
 * other object is put by rdt_put, one after the other. Of values with one id and REPLACE the last one stays, if all of them
 * travel together or none does. timeout_ns holds for each message; once one has timed out, and the daemon gives no sign of life
 * for as long (1 to 5 s), the values that are left are TIMED_OUT, too, and not sent.
 * statuses_p NULL: if one cannot be put, those that were put are freed, except those that have replaced another. Errors of
 * each: EXISTS (the id), LIMIT, NO_MEMORY, TIMED_OUT, UNSUPPORTED. */
enum rdt_status rdt_put_many(rdt *rdt, const struct rdt_value *values, size_t count, const struct rdt_put_options *options,
                             struct rdt_ref *refs_p, enum rdt_status *statuses_p, struct rdt_error *err);

/* ---- exists ---- */

/* Finds out which of refs [count] could be fetched now: ids that were put, with or without a generation, and names that have a
 * version above `after`. Moves and holds nothing, waits for no put, and is no use of an evictable object (RDT_PUT_EVICTABLE).
 * A name whose ref gives no node is looked for at all nodes of the node table. Each other node is asked about its own in one
 * message, or in several if they are thousands.
 * After a minute the call ends with what is known by then.
 * statuses_p [count]: RDT_OK: yes. NOT_PUT: nobody has put or published it, or this user may not see it. FREED, OWNER_DIED,
 * NOT_FOUND: it has ended. Returns RDT_OK if each has one of these. Anything else means that this is not known: PEER_LOST,
 * TIMED_OUT (another node does not answer), LIMIT, DENIED (an object of another user, who does not show it), UNSUPPORTED (an
 * older daemon), and what makes the call fail as a whole. */
enum rdt_status rdt_exists(rdt *rdt, const struct rdt_ref *refs, size_t count, enum rdt_status *statuses_p,
                           struct rdt_error *err);

/* ---- look-up ---- */

struct rdt_key { /* an id of this user */
    const void *id;
    size_t id_bytes; /* 1..RDT_ID_MAX_BYTES */
};

struct rdt_lookup_options {
    size_t struct_size;
    int64_t lease_ns; /* 0: no lease; at most detached_ttl_max */
    int64_t nodes_ns; /* how long other nodes are asked, at most a minute; 0: none is asked */
    bool prefix;      /* ends before the first key that has no object */
    /* Is told, before the call returns, of each node whose objects may be missing in the answer, and why it was not asked, or
     * has not answered: TIMED_OUT, PEER_LOST, UNSUPPORTED (an older rdtd), DENIED, LIMIT. Both are valid inside. May be
     * NULL. */
    void (*on_unasked)(void *arg, const char *node, const struct rdt_error *why);
    void *arg;
};

/* Finds the objects of keys [count] of this user on this node, one message for a few thousand, and leases each in the step in
 * which it is found: the daemon holds it for lease_ns, so that nothing of it is evicted (RDT_PUT_EVICTABLE) or freed before it
 * is fetched, whatever happens to this session.
 * nodes_ns: keys that have no object here are asked of all nodes of the node table at once, one message for each node, and
 * leased there in the same way; of several that have one the first to answer counts. So a key that nobody has costs one round
 * trip, and a node that does not answer costs nodes_ns; one to which there is no link is not asked, and costs nothing.
 * refs_p [count] receives a ref of each object, with which a fetch waits for nothing, and a ref with the generation 0 for a
 * key without one; ref.node says where it is. *n_p, may be NULL, receives how many there are. A lease ends by rdt_lease_end, or
 * after lease_ns; that of a node whose answer came too late by the latter only. Of several leases of one object, and refs of it
 * on their way (rdt_hand_on), those that were not ended end together, after the longest of their times. A call that fails ends
 * those that it has begun, unless the connection is lost. nodes_ns holds for each 4,096 keys. A fetch of an object that another
 * node has freed, or evicted without a lease, is FREED or NOT_FOUND, or PEER_LOST if that node is gone; it never gets a part.
 * A lookup counts as a use, and in the hits and misses of the cache of this node; at other nodes what is found counts
 * as a hit, and what is not there does not count. A fetch by the refs is one more use, but no further hit.
 * options may be NULL. Errors: INVALID (a key, which err names by its number; nodes_ns), LIMIT (lease_ns is above
 * detached_ttl_max; the records of the leases, 192 bytes for each object, exceed owner_max_heap), NO_MEMORY. */
enum rdt_status rdt_lookup(rdt *rdt, const struct rdt_key *keys, size_t count, const struct rdt_lookup_options *options,
                           struct rdt_ref *refs_p, size_t *n_p, struct rdt_error *err);

/* Ends one lease of each of refs [count], on whatever node; those with the generation 0, and those without a lease, are passed
 * over. What another node cannot be told ends there after its lease_ns. */
enum rdt_status rdt_lease_end(rdt *rdt, const struct rdt_ref *refs, size_t count, struct rdt_error *err);

/* ---- fetch, wait ---- */

/* Fetches refs [count] as rdt_fetch does, and waits for all, also when some fail. objects_p [count] receives the objects,
 * which the caller releases, and NULL for those that failed. With a timeout_ns (RDT_NO_WAIT: none waits for a put) those that
 * are not there in time have TIMED_OUT or NOT_PUT; after an interruption, those that are not there yet have CANCELLED.
 * statuses_p may be NULL. */
enum rdt_status rdt_fetch_each(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                               rdt_object **objects_p, enum rdt_status *statuses_p, struct rdt_error *err);

/* Takes those of refs [count] that come in a few answers of their nodes (rdt_fetch says which), and waits for nothing else.
 * objects_p [count] receives the objects, which the caller releases, and NULL for those that are to be fetched, for whatever
 * reason: they are large, have not been put, are not shown to the caller. With a timeout_ns at most half of it passes before a
 * node that does not answer is left; with RDT_NO_WAIT, 200 ms. verify has no effect. Errors: INVALID, CANCELLED (interrupted),
 * DISCONNECTED, FORKED; then nothing is taken. */
enum rdt_status rdt_fetch_small(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                                rdt_object **objects_p, struct rdt_error *err);

/* Copies the tensors of refs [count] into targets, as rdt_fetch_each does with these targets, and returns when all are there or
 * have failed: the blocks of a cache into one memory. targets [count] are lists [target_counts[i]] of row-major tensors with
 * the dtypes and shapes of the object's; no two overlap. Nothing else of the objects is returned. Objects of this user on this
 * node whose refs have a generation, as those of rdt_lookup do, take one message for hundreds: the daemon copies them at once
 * into targets in memory from rdt_alloc, or in memory on devices that it knows (rdt_devices.h), also where the targets of one
 * object lie in several ranges, and by way of memory of its own into targets of up to 4 MiB in ordinary memory. Copies to and
 * from devices are queued some hundred at a time. All others are fetched one by one. A ref without a generation waits for its
 * put. timeout_ns is as in rdt_fetch_options; after TIMED_OUT and CANCELLED the daemon may write to targets in memory that it
 * knows for a moment. Errors of each: those of rdt_fetch. */
enum rdt_status rdt_load_many(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_tensor *const *targets,
                              const size_t *target_counts, int64_t timeout_ns, enum rdt_status *statuses_p,
                              struct rdt_error *err);

/* Waits until how_many of requests [count] (RDT_WAIT_ALL: all of them) have ended, well or not, or timeout_ns has passed.
 * statuses_p [count], may be NULL, receives how each has ended, AGAIN if it runs; rdt_request_status has the sentences.
 * Returns RDT_OK if how_many have ended, and TIMED_OUT if too few have; nothing is cancelled. */
enum rdt_status rdt_wait_each(rdt *rdt, rdt_request *const *requests, size_t count, size_t how_many, int64_t timeout_ns,
                              enum rdt_status *statuses_p, struct rdt_error *err);

/* ---- names ---- */

/* Publishes refs [count] of objects of this node under names [count], at most RDT_PUBLISH_MOST, as rdt_publish does, so that
 * all become visible at once: whoever finds the new version of one of them on this node finds those of all. All or nothing: an
 * error, which names the first name that cannot be published, has published none; but NO_MEMORY and a death of the daemon may
 * leave some of them. The options hold for all; name_ref is NULL. versions_p [count], may be NULL, receives the versions. A
 * node that others list asks the homes of all names at the same time. Errors: those of rdt_publish; INVALID (a name occurs
 * twice, the objects have different owners), UNSUPPORTED (an object of another node; an older daemon). */
#define RDT_PUBLISH_MOST 1024u
enum rdt_status rdt_publish_many(rdt *rdt, const char *const *names, const struct rdt_ref *refs, size_t count,
                                 const struct rdt_publish_options *options, uint64_t *versions_p, struct rdt_error *err);

/* ---- ends ---- */

/* Frees refs [count] as rdt_free does, without waiting for one before the next. statuses_p may be NULL. */
enum rdt_status rdt_free_many(rdt *rdt, const struct rdt_ref *refs, size_t count, bool force, enum rdt_status *statuses_p,
                              struct rdt_error *err);

/* Frees the objects of this user on this node whose ids begin with `prefix`, which is not empty: without force those that this
 * session has put, detached and evictable ones; with force all. *n_p, may be NULL, receives how many. Objects that are put
 * meanwhile may stay, and those that others end meanwhile are not counted. Errors: INVALID, and that of the first that could
 * not be freed. */
enum rdt_status rdt_free_prefix(rdt *rdt, const char *prefix, bool force, size_t *n_p, struct rdt_error *err);

/* Unpublishes the names of this user on this node that begin with `prefix`, as rdt_free_prefix frees objects. */
enum rdt_status rdt_unpublish_prefix(rdt *rdt, const char *prefix, size_t *n_p, struct rdt_error *err);

#ifdef __cplusplus
}
#endif

#endif
