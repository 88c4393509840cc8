/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded tensors: versions of a name that many processes publish in parts, and plans with which a reader fetches boxes of
 * them.
 *
 *     trainer, rank r of n                                       sampler
 *     rdt_put(c, shards.., &put, &ref, &err);  (put.shards)      rdt_ref_from_name("policy", 0, NULL, &name, &err);
 *     rdt_publish_part(c, &name, step, r, n, &ref, ..);          rdt_plan_create(c, &name, wants, n, NULL, &plan, &err);
 *                                                                for (uint64_t after = 0;; after = run.version)
 *                                                                    rdt_plan_run(plan, after, RDT_FOREVER, &run, &err);
 *
 * A version becomes visible when all parts of its step have been published and cover every tensor exactly once. Readers never
 * see parts of two steps. The name lives on one node, that of its ref. The parts are ordinary objects, each on the node of its
 * publisher; they are held as long as anybody holds the version, even after their publishers have ended. */
#ifndef RDT_PLAN_H
#define RDT_PLAN_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- publishing ---- */

struct rdt_part_options {
    size_t struct_size;
    enum rdt_visibility visibility; /* who may fetch the version: not wider than the object's, and equal for all parts */
    /* [n_others] keys of tensors that this publisher has, too, and leaves to others, because all have the same: INVALID, for
     * all publishers, if no part of the version has one of them. 1..256 bytes each; copied. */
    const char *const *others;
    size_t n_others;
};

/* Publishes the object, which was put with shards, as the part of `rank` (below `of`) of the version `step` of a name, and
 * returns when the version is complete; *version_p, may be NULL, receives its number. name comes from rdt_ref_from_name.
 * Where there is a node table, a name without an address may live on any node; elsewhere it lives on this session's node.
 * The object must be on this session's node or on the name's; it should be a snapshot, and may be freed when the call has
 * returned. If its bytes are still being written, the call waits for them. Each step must be greater than the one before.
 * Errors, of which all but those of this part alone end the version for all its publishers: INVALID (the step is not above
 * that of the newest version; `rank` or `of`; boxes that overlap or are missing: the sentence names tensor, box and ranks),
 * EXISTS (the rank has published this step; another node has the name), OWNER_DIED (another publisher ended, cancelled or
 * timed out), FREED (a later step became complete first; a part was freed by force), TIMED_OUT (not all parts were published
 * in time), LIMIT (more tensors than version_max_tensors, or more boxes than rdtd(8) says; too many incomplete steps),
 * NO_MEMORY (for the list of tensors), DENIED, PEER_LOST (the name's node), RESTARTED (the daemon has, and the version was not
 * complete: all ranks publish it again). The same object as the same part of a complete step is answered with its version, so
 * after PEER_LOST the call may be repeated. */
enum rdt_status rdt_publish_part(rdt *rdt, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                 const struct rdt_ref *object, const struct rdt_part_options *options, int64_t timeout_ns,
                                 uint64_t *version_p, struct rdt_error *err);

/* Starts rdt_publish_part and returns. The caller destroys *request_p. If the request has not ended by then, the part is
 * withdrawn and the version fails. */
enum rdt_status rdt_publish_part_start(rdt *rdt, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                       const struct rdt_ref *object, const struct rdt_part_options *options, int64_t timeout_ns,
                                       rdt_request **request_p, struct rdt_error *err);

/* Tells the other publishers of the step at once that this rank has no part, because its put has failed for instance: the step
 * fails for them with OWNER_DIED and the sentence, also if they come later, within a minute. All may try the step again. Does
 * not wait for an answer. Errors: INVALID, FORKED, DISCONNECTED. */
enum rdt_status rdt_part_give_up(rdt *rdt, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                 enum rdt_status why, const char *sentence, struct rdt_error *err);

/* Writes the version's number. Errors: AGAIN (the request has not ended), INVALID (not of rdt_publish_part_start), or the
 * error with which the request failed. */
enum rdt_status rdt_part_version(const rdt_request *request, uint64_t *version_p, struct rdt_error *err);

/* ---- publishing tensor by tensor ----
 * For a publisher that has its tensors one after the other, as when each comes from a collective, and does not know their names
 * and shapes before:
 *
 *     rdt_publishing_begin(c, &name, step, r, n, NULL, &p, &err);
 *     while (next(&tensor, &shard))
 *         rdt_publishing_add(p, &tensor, &shard, &err);
 *     rdt_publishing_end(p, RDT_FOREVER, &version, &err);
 *     rdt_publishing_destroy(p);
 *
 * librdt copies each tensor into memory of the daemon. A large tensor, and as many small ones as fill such memory, is a piece:
 * an object of its own. All pieces of a rank are its part. Nodes that follow the name (rdt_follow.h) fetch pieces while more
 * of them come; no reader sees a version before it is complete. Pieces grow with the part, and faster where there are many
 * ranks, because all ranks together may have 16,384.
 * The version becomes visible whole, as after rdt_publish_part, or not at all: if this session ends before, or the publisher is
 * destroyed, nothing of it is left. Readers cannot tell it from another version. The memory of the version before the last is
 * used again, if only its owner may see the versions: then the tensors of each version should come in one order. */

typedef struct rdt_publishing rdt_publishing;

struct rdt_publishing_options {
    size_t struct_size;
    enum rdt_visibility visibility; /* who may fetch the version; equal for all ranks */
    int64_t timeout_ns; /* how long rdt_publishing_add may wait for room under a limit; 0: not at all; negative: no limit */
};

/* Begins the part of `rank` (below `of`) of the version `step` of a name; the parameters are those of rdt_publish_part. Does
 * not wait for an answer: what the daemon refuses is the error of a later call. The caller destroys *publishing_p, before
 * rdt_close. Errors: INVALID, UNSUPPORTED (the daemon is of a release without this), NO_MEMORY, DISCONNECTED, FORKED. */
enum rdt_status rdt_publishing_begin(rdt *rdt, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                     const struct rdt_publishing_options *options, rdt_publishing **publishing_p,
                                     struct rdt_error *err);

/* Copies a tensor in host memory, which may be changed when the call has returned. shard says of which larger tensor it is a
 * box; its key is not NULL. The same key may come again with another box. One thread at a time. Errors, which name the tensor:
 * INVALID, LIMIT and NO_MEMORY (there is no room for it), TIMED_OUT (nor has there been any in time), CANCELLED; after these
 * the tensor is not part of the version, and the caller may go on. Errors that end the version, for all later calls, too: those
 * of rdt_publish_part, such as EXISTS (another process publishes this rank of the step), OWNER_DIED (another rank has given
 * up, or its time has passed: also if that was before this rank has begun, within a minute); LIMIT, NO_MEMORY and TIMED_OUT
 * for a piece, which the other ranks are told; RESTARTED (the daemon has, and there are several ranks: all begin the step
 * again; the only rank goes on) and PEER_LOST (the name's node). */
enum rdt_status rdt_publishing_add(rdt_publishing *publishing, const struct rdt_tensor *tensor, const struct rdt_shard *shard,
                                   struct rdt_error *err);

/* Notes the key of a tensor that this rank has, too, and leaves to others: see rdt_part_options.others. INVALID, NO_MEMORY. */
enum rdt_status rdt_publishing_leave(rdt_publishing *publishing, const char *key, struct rdt_error *err);

struct rdt_publishing_info {
    uint64_t step, version; /* version 0: it is not complete */
    size_t tensors, pieces; /* that were added, and that they are in so far */
    uint64_t bytes;         /* of the tensors */
};
void rdt_publishing_info(const rdt_publishing *publishing, struct rdt_publishing_info *info_p);

/* Says that all tensors of this rank were added, waits until the version is complete, and writes its number to *version_p,
 * which may be NULL. timeout_ns limits the wait for the other ranks. Errors: those of rdt_publish_part; INVALID: the only rank
 * has added nothing. */
enum rdt_status rdt_publishing_end(rdt_publishing *publishing, int64_t timeout_ns, uint64_t *version_p, struct rdt_error *err);

/* Gives the version up: it fails for the other ranks with OWNER_DIED and the sentence. Does not wait for an answer. Errors:
 * INVALID (the version is complete, or was given up), FORKED, DISCONNECTED. */
enum rdt_status rdt_publishing_give_up(rdt_publishing *publishing, const char *sentence, struct rdt_error *err);

/* Frees it; gives the version up if it is not complete. publishing may be NULL. */
void rdt_publishing_destroy(rdt_publishing *publishing);

/* ---- the manifest of a version ---- */

typedef struct rdt_manifest rdt_manifest;

struct rdt_manifest_info {
    uint64_t version, step;
    size_t parts;
};

struct rdt_box { /* a tensor of a part. The pointers are borrowed from the manifest */
    const char *key;
    enum rdt_dtype dtype;
    uint32_t ndim;
    const int64_t *global_shape, *start, *count; /* [ndim] */
};

/* Whether the fetched object is the manifest of a version of many parts. rdt_fetch of a name brings it without an error: it
 * has none of the version's tensors, and is for rdt_manifest_fetch and rdt_plan_create, which take the name, or the object's
 * ref. */
bool rdt_object_is_manifest(const rdt_object *object);

/* Waits for a version of the name above name->after, and holds it and all its parts until rdt_manifest_release. name may also
 * be the ref of an object that rdt_object_is_manifest. Errors: those of a fetch; INVALID (the version is an ordinary
 * object). */
enum rdt_status rdt_manifest_fetch(rdt *rdt, const struct rdt_ref *name, int64_t timeout_ns, rdt_manifest **manifest_p,
                                   struct rdt_error *err);
void rdt_manifest_info(const rdt_manifest *manifest, struct rdt_manifest_info *info_p);

/* Writes the ref of part i, and to *tensors_p how many tensors it has. INVALID: there is no such part. */
enum rdt_status rdt_manifest_part(const rdt_manifest *manifest, size_t i, struct rdt_ref *ref_p, size_t *tensors_p,
                                  struct rdt_error *err);
enum rdt_status rdt_manifest_box(const rdt_manifest *manifest, size_t part, size_t tensor, struct rdt_box *box_p,
                                 struct rdt_error *err);
void rdt_manifest_release(rdt_manifest *manifest); /* may be NULL */

/* ---- plans ---- */

/* A box that the reader wants, and the memory that receives it: of the host, or of a device whose memory a mapper of the
 * connection writes, as that of librdt-cuda does for GPUs (after rdt_cuda_open), whoever allocated it. Casts are made on the
 * way there. Wants share no memory, except that several may have the very same: then the version must have the same for all
 * of them, as for tied weights. */
struct rdt_want {
    const char *key;
    uint32_t ndim;
    const int64_t *start;   /* [ndim]; NULL: the want is the whole tensor, whose shape is `count`, unless global_shapes of
                           * rdt_plan_options gives its shape: then all 0 */
    const int64_t *count;   /* [ndim] */
    enum rdt_dtype dtype;   /* of the memory: the published one, or one that it can be cast to (rdt_can_cast) */
    void *data;             /* address of the box's first element */
    const int64_t *strides; /* [ndim] elements, by which no two have one address; NULL: row-major contiguous */
};

/* Returns whether a plan can cast elements: f32, f16 and bf16 to each other and to f8_e4m3fn and f8_e5m2. Values are rounded to
 * the nearest, ties to even. A value that is too large becomes infinity, or the largest number of f8_e4m3fn, which has no
 * infinity. Equal dtypes can always be cast. */
bool rdt_can_cast(enum rdt_dtype from, enum rdt_dtype to);

/* Casts n contiguous elements. The two memory ranges must not overlap. UNSUPPORTED: there is no such cast. */
enum rdt_status rdt_cast(enum rdt_dtype from, const void *data, enum rdt_dtype to, void *data_p, size_t n,
                         struct rdt_error *err);

enum rdt_plan_move {
    RDT_PLAN_AUTO = 0,  /* whole parts from this node, and from other nodes if at least half of a part is wanted; else slices */
    RDT_PLAN_WHOLE = 1, /* whole parts: a part that is a snapshot is moved to this node once, for all processes that read it */
    RDT_PLAN_SLICES = 2 /* from other nodes only what this plan wants, even if other processes here want other slices */
};

struct rdt_plan_options {
    size_t struct_size;
    enum rdt_plan_move move;
    const char *transport; /* fetch only by this transport; NULL: any */
    /* NULL, or [count of the wants]: the shape [ndim of the want] of the larger tensor of which each want is a box. A run
     * refuses a version whose tensor has another shape, with MISMATCH. An entry that is NULL: a want with a start is a box of a
     * tensor of any shape. Boxes that follow from how the reader has split its model need this: without it, one that was
     * computed for another model or another number of ranks reads other elements, and nothing says so. */
    const int64_t *const *global_shapes;
    /* NULL, or [count of the wants]: the dimension in which the tensor may be longer or shorter than the reader's own, such as
     * a vocabulary that is padded for the number of ranks; -1: none. Where the published tensor is shorter, the memory of the
     * want beyond it is left as it is. INVALID: for a want whose larger tensor has no known shape. */
    const int32_t *padded;
    bool strict;    /* a run refuses a version with a tensor of which there is no want, with MISMATCH */
    bool unused[7]; /* programs that were built with an earlier rdt_plan.h may have anything here */
    /* A run compares each part that it reads with its checksum, as rdt_verify does, before the first want is written: with
     * DAMAGED, the wants are unchanged. Parts then come whole. INVALID: with RDT_PLAN_SLICES. */
    bool verify;
};

typedef struct rdt_plan rdt_plan;

/* Prepares to read the boxes `wants` [count] of versions of the name. The wants and options are copied; the memory that the
 * wants name must stay until rdt_plan_destroy. name may also be the ref of a manifest (rdt_object_is_manifest), which the
 * caller holds (rdt_hold): the plan then reads that version. Does not contact the daemon. Errors: INVALID, and UNSUPPORTED if
 * the memory is a device's that no mapper writes; LIMIT: so many wants lie between each other that it would take too long to
 * find out whether they share memory; the sentence names the want. */
enum rdt_status rdt_plan_create(rdt *rdt, const struct rdt_ref *name, const struct rdt_want *wants, size_t count,
                                const struct rdt_plan_options *options, rdt_plan **plan_p, struct rdt_error *err);

struct rdt_plan_stream {
    const char *device; /* uuid */
    void *stream;       /* of the device's vendor; for GPUs a CUstream, which may be NULL */
};

/* Names the streams [n] whose work may use the wants on their devices; they replace those named before. From now on a run, or a
 * commit, writes no want before all work that is in these streams then has ended. Without this, the caller sees to it that no
 * work uses the wants. When the call returns, the bytes are there, for work in any stream. At most 8 streams a device, copied;
 * those of other devices than the wants' are left out. INVALID. */
enum rdt_status rdt_plan_order(rdt_plan *plan, const struct rdt_plan_stream *streams, size_t n, struct rdt_error *err);

struct rdt_plan_run {
    uint64_t version, step;
    bool planned;         /* the pieces were computed again, because the version has a new layout */
    size_t parts, pieces; /* parts that were fetched from, and boxes that were copied */
    uint64_t bytes;       /* written to the wants' memory */
    uint64_t bytes_moved; /* received from other nodes for this run */
    int64_t wait_ns, fetch_ns, copy_ns;
};

/* Waits until timeout_ns for a version above `after` (0: the newest), and writes all wants from that one version. All bytes
 * are on this node before the first is written, and no error comes later, so an error leaves the wants unchanged; but for
 * SYSTEM from a device that fails while it is written, whose sentence says that wants may have a part. One thread at a time may
 * run a plan. *run_p, may be NULL, receives what was done. Errors: TIMED_OUT, NOT_FOUND (the version has no such
 * tensor), MISMATCH (a tensor of another shape, of which the sentence names both; a box that ends outside the tensor; with
 * `strict`, a tensor that is not wanted; tensors that differ, whose wants have the same memory), UNSUPPORTED (a cast that does
 * not exist), those of a fetch, and with `verify` those of rdt_verify. Shapes are compared again for each version whose
 * tensors have changed. */
enum rdt_status rdt_plan_run(rdt_plan *plan, uint64_t after, int64_t timeout_ns, struct rdt_plan_run *run_p,
                             struct rdt_error *err);
void rdt_plan_destroy(rdt_plan *plan); /* may be NULL */

#ifdef __cplusplus
}
#endif
#endif
