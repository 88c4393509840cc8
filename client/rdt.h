/* SPDX-License-Identifier: Apache-2.0 */
/* librdt: put, fetch, wait for and free tensors through the rdtd of this node.
 *
 *     rdt_connect(NULL, &c, &err);
 *     rdt_put(c, &tensor, 1, NULL, &ref, &err);            ...   rdt_fetch(c, &ref, 1, NULL, &object, &err);
 *
 * An object of up to 32 KiB in all travels in messages. The memory of larger ones is shared by file descriptor on
 * one node and moved from daemon to daemon between nodes.
 *
 * Conventions
 * - Every function that can fail returns enum rdt_status (0 is RDT_OK) and fills err, which may be NULL, with one sentence.
 *   Results (..._p) are written only on success.
 * - A time-out, timeout_ns, is in nanoseconds from the call on. It means the same everywhere:
 *
 *       timeout_ns      as a parameter                          as a member of an options struct
 *       0               does not wait: answers what is so now   the default, which the member's comment says
 *       RDT_NO_WAIT     -                                       what 0 is as a parameter
 *       positive        waits so long, then TIMED_OUT           the same
 *       negative        waits without end (RDT_FOREVER)         the same
 *
 *   The daemon ends a request when its time is over, and says what was missing. If the daemon is stopped, the call ends
 *   without it, at most 50 ms later. A call that does not wait still gives the daemon 200 ms to answer, and to deliver the
 *   bytes of an object that is there. A call that takes no time-out ends within a minute (TIMED_OUT).
 * - Thread-safe: any call may be made from any thread on one connection, except that a request, an object or a memory range
 *   must not be destroyed while another thread still uses it. No thread is started; callers that wait drive the socket.
 * - After a fork the child's copy of a connection, and of everything made from it, answers RDT_FORKED; the child may unmap by
 *   rdt_close, connects anew, and never disturbs the parent. When the parent releases memory or gives it back, its bytes may
 *   change or vanish for the child, too. The child may read all other memory, even when the parent has ended.
 * - Options structs begin with struct_size: set it by RDT_INIT, e.g. struct rdt_put_options o = RDT_INIT(o).
 * - A daemon with a keeper may be killed and started again: the session goes on at the next one, and calls only take longer.
 *   Whoever waits, or dispatches, finds the next daemon; rdt-concepts(7) lists the few requests that end with RDT_RESTARTED.
 * - Any call on a lost connection answers RDT_DISCONNECTED, or RDT_RESTARTED if the daemon restarted without the session.
 *   Mapped memory stays mapped until it is released.
 */
#ifndef RDT_H
#define RDT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_dtype.h"
#include "rdt_put_flags.h"
#include "rdt_ref.h"
#include "rdt_status.h"

#define RDT_VERSION "0.1.0"

#ifdef __cplusplus /* C++11 or later */
template <typename T> struct rdt_init_type {
    typedef T type;
};
template <typename T> struct rdt_init_type<const T> {
    typedef T type;
};
template <typename T> inline typename rdt_init_type<T>::type rdt_init_options()
{
    typename rdt_init_type<T>::type options = typename rdt_init_type<T>::type();

    options.struct_size = sizeof options;
    return options;
}
#define RDT_INIT(options) rdt_init_options<decltype(options)>()
extern "C" {
#else
#define RDT_INIT(options)              \
    {                                  \
        .struct_size = sizeof(options) \
    }
#endif
#define RDT_FOREVER ((int64_t)-1)
#define RDT_NO_WAIT ((int64_t)1)

typedef struct rdt rdt;                 /* a connection, which is one session at the daemon */
typedef struct rdt_request rdt_request; /* a fetch, wait, hold or broadcast that was started */
typedef struct rdt_object rdt_object;   /* what a fetch brought: tensors, metadata, a hold */

/* ---- connection ---- */

struct rdt_connect_options {
    size_t struct_size;
    const char *socket; /* NULL: $RDT_SOCKET, else /run/rdtd/rdtd.sock */
    const char *name;   /* shown by rdtctl; NULL: the program's name */
    int64_t timeout_ns; /* 0: 10 s; negative: without end */
};

/* Connects to the daemon and begins a session. *rdt_p is the caller's, for rdt_close. options may be NULL. Errors: SYSTEM
 * (there is no socket, or it may not be opened; the sentence says what to do), DENIED, LIMIT (too many clients), PROTOCOL
 * (no common version), TIMED_OUT, DISCONNECTED (there is no daemon; if one was killed and has left its socket, the call waits
 * up to 2 s for the next). */
enum rdt_status rdt_connect(const struct rdt_connect_options *options, rdt **rdt_p, struct rdt_error *err);

/* Ends the session: cancels its requests, unmaps all memory that came from it, and drops its holds. Objects that it put
 * without RDT_PUT_DETACHED are freed. Every request, object and pointer that came from it is invalid afterwards. rdt may be
 * NULL. */
void rdt_close(rdt *rdt);

struct rdt_node_info {
    uint8_t node[16], boot_id[16];
    char address[65]; /* the address of the peer link; "" if there is none */
    char daemon_version[32];
    uint64_t session; /* this session's id, as rdtctl shows it */
    uint32_t uid;     /* the owner that this session acts for */
    char tenant[33];
};
enum rdt_status rdt_node(rdt *rdt, struct rdt_node_info *info_p, struct rdt_error *err);

/* Sends one message to the daemon and waits for the reply, until timeout_ns. */
enum rdt_status rdt_ping(rdt *rdt, int64_t timeout_ns, struct rdt_error *err);

/* ---- memory ----
 * rdt_put finds out by the address of a tensor where its bytes are, and reports it (rdt_put_options.how):
 *   DAEMON    memory of rdt_alloc: the object refers to it, no copy
 *   IMPORTED  the caller's memfd, offered by rdt_import: no copy; readers of other owners get copies
 *   COPIED    any other memory: rdt_put copies it once, and later writes are not seen
 * Copied tensors of at most 32 KiB, if the object has no others, travel in the message: one
 * round trip and nothing to map. Every reader gets a copy, and RDT_FETCH_SHARE is answered NO_PATH. A larger snapshot
 * of at most sealed_max (4 MiB) goes into a memfd that this process creates and hands over, also in one round trip. The
 * daemon counts its pages under its limits; the system charges them to this process's control group.
 */
enum rdt_memory { RDT_MEMORY_DAEMON = 1, RDT_MEMORY_IMPORTED = 2, RDT_MEMORY_COPIED = 3 };

/* Allocates `bytes` of zeroed, page-aligned host memory at the daemon and maps them writable; *addr_p is the address. The
 * memory is reserved at once. An object that is put from it keeps it alive after rdt_dealloc. Errors: NO_MEMORY, LIMIT,
 * INVALID (0 bytes). */
enum rdt_status rdt_alloc(rdt *rdt, size_t bytes, void **addr_p, struct rdt_error *err);

struct rdt_alloc_options {
    size_t struct_size;
    int64_t timeout_ns;      /* how long the daemon may wait for room under a limit; 0: not at all; negative: without
                         * end */
    const char *memory;      /* the kind; NULL: "host". Another kind needs a mapper (rdt_map_by), and *addr_p is an
                         * address of the device */
    const char *device;      /* the uuid of the device; NULL: the only one there is */
    int64_t call_timeout_ns; /* of the whole call; 0: five minutes more than timeout_ns; negative: without end */
    bool written_whole;      /* device memory: the caller writes all of it before anybody reads it. It may then show bytes that
                              * this user had there before, instead of zeros. Host memory is zeroed in any case */
};

/* Allocates as rdt_alloc does, with options. A request that waits for room holds nothing, and later requests of the same
 * user do not overtake it. A request that could never fit is refused at once. Also TIMED_OUT: there was no room in time;
 * the sentence says what the request waited for. */
enum rdt_status rdt_alloc_with(rdt *rdt, size_t bytes, const struct rdt_alloc_options *options, void **addr_p,
                               struct rdt_error *err);

/* Ends a range of rdt_alloc, rdt_import or rdt_import_shared that starts at addr. Memory of rdt_alloc is unmapped, or
 * cached for what this process allocates or fetches next: the caller must not touch it any more. After an import the
 * mapping stays the caller's, and the daemon forgets it. Objects that were put from the range live on. Errors: INVALID (no
 * such range starts at addr), TIMED_OUT, DISCONNECTED. */
enum rdt_status rdt_dealloc(rdt *rdt, void *addr, struct rdt_error *err);

/* Ends a range as rdt_dealloc does, but waits for nothing: memory of rdt_alloc is unmapped when the daemon has answered,
 * and is not cached. For threads that must not block when the daemon is stopped. */
enum rdt_status rdt_dealloc_soon(rdt *rdt, void *addr, struct rdt_error *err);

/* Offers a memfd to the daemon, of which the caller has mapped the first `bytes` at addr, as a shared mapping. The fd is
 * borrowed, and may be closed afterwards. The memfd must be sealed against shrinking: fcntl(fd, F_ADD_SEALS,
 * F_SEAL_SHRINK). Pages that it lacks are charged to this client when the daemon creates them because it copies to or from
 * there; if they do not fit its limits, the request that needs the bytes fails with LIMIT or NO_MEMORY. Errors: INVALID
 * (not a memfd, shorter than `bytes`, not sealed, or it overlaps a range that is known), LIMIT. */
enum rdt_status rdt_import(rdt *rdt, int fd, void *addr, size_t bytes, struct rdt_error *err);

/* ---- tensors ---- */

struct rdt_tensor {
    enum rdt_dtype dtype;
    uint32_t ndim;          /* 0..32; 0 is a scalar of one element */
    const int64_t *shape;   /* [ndim] elements, each >= 0 */
    const int64_t *strides; /* [ndim] elements, may be negative or 0; NULL: row-major contiguous */
    void *data;             /* address of element [0, 0, ...]; may be NULL if there are no elements */
};

/* Computes the bytes of all elements, row-major contiguous; 0 if a dimension is 0. INVALID: dtype, ndim or shape is wrong,
 * or the product overflows. */
enum rdt_status rdt_tensor_bytes(const struct rdt_tensor *tensor, size_t *bytes_p, struct rdt_error *err);

/* ---- put ---- */

enum rdt_visibility { RDT_VISIBLE_TO_OWNER = 0, RDT_VISIBLE_TO_TENANT = 1, RDT_VISIBLE_TO_ALL = 2 };

/* Says that a tensor is a box of a larger one, such as a parameter of a model that several processes hold in shards. The box
 * begins at `start` and has the tensor's own shape. */
struct rdt_shard {
    const char *key;             /* names the larger tensor: 1..256 bytes; NULL: the tensor is no part of a larger one */
    const int64_t *global_shape; /* [ndim of the tensor] elements of the larger tensor; NULL: the tensor's own shape */
    const int64_t *start;        /* [ndim of the tensor]; NULL: all 0 */
};

struct rdt_put_options {
    size_t struct_size;
    const void *id;       /* the caller's name for the object, unique for its uid and tenant; NULL: generated */
    size_t id_bytes;      /* 1..128 */
    const void *metadata; /* opaque; every reader gets it; at most 4 MiB */
    size_t metadata_bytes;
    enum rdt_visibility visibility; /* who else may fetch the object; default: this uid (and tenant) only */
    const char *transport;          /* preferred between nodes; NULL: the daemon chooses */
    uint32_t flags;                 /* enum rdt_put_flags; UNSUPPORTED: this version does not know a flag */
    int64_t timeout_ns;             /* of the call, including a wait for room under a limit; 0 or negative:
                                     * without end, and without waiting for room */
    enum rdt_memory *how;           /* NULL, or [count]: receives how the memory of each tensor was taken */
    int64_t ttl_ns;                 /* for RDT_PUT_DETACHED; 0: ten minutes; LIMIT: above its
                                     * detached_ttl_max */
    const struct rdt_shard
        *shards; /* NULL, or [count]: what each tensor is a box of. INVALID: a box that ends outside its larger
                                     * tensor. Readers see it by rdt_object_shard; rdt_plan.h needs it */
};

/* Makes an object of tensors [count] in one round trip; in two if bytes are copied into a region of the daemon's and no
 * region of an earlier such put is free (librdt uses them again). The tensors are borrowed during the call. They may
 * overlap, repeat and be empty; count may be 0. The object refers to the memory and is live: readers see what is written
 * there later, so nothing should be put over it before rdt_wait_freed. Nobody writes to copied bytes. The object lives
 * until it is freed or this session ends. With RDT_PUT_SNAPSHOT the call returns when the copy is complete; after TIMED_OUT
 * there is no object. Errors: INVALID (the sentence names the tensor), EXISTS (the id), LIMIT, NO_MEMORY, TIMED_OUT,
 * UNSUPPORTED (the transport is not loaded, or does not move such memory). */
enum rdt_status rdt_put(rdt *rdt, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                        struct rdt_ref *ref_p, struct rdt_error *err);

/* Stores an object, or the newest version of a name, in the storage_dir of its daemon, so that it survives the daemon and a
 * reboot of its node. Starts to write unless RDT_PUT_STORED has done so, and waits until the object is on the disk with all
 * names that it is published under. The next daemon restores the objects that outlast sessions: those of published names
 * without a lease, and DETACHED objects, whose ttl_ns begins again. When an object ends, its file is removed. timeout_ns
 * limits the wait; a TIMED_OUT does not end the writing. file_p [file_bytes], may be NULL, receives the file's path on that
 * node. Errors: UNSUPPORTED (the daemon stores nothing; memory on a device), INVALID (the object is not a snapshot), LIMIT
 * (storage_max, or owner_max_stored_bytes of the object's owner), SYSTEM (the disk is full or failed; the sentence names the
 * file, the object stays in memory, and a later call tries again), FREED, DENIED (another owner's), NOT_FOUND, TIMED_OUT,
 * PEER_LOST. */
enum rdt_status rdt_store(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, char *file_p, size_t file_bytes,
                          struct rdt_error *err);

/* Says that the bytes of an object that was put with RDT_PUT_PENDING are there now. The object becomes live (a snapshot is
 * copied first), and fetches that wait for it go on. Waits for no answer, and is repeated as rdt_drop is; nothing happens if
 * the object is not pending. May be called in any thread, but not in a callback in which the device's driver forbids blocking:
 * it takes the connection's lock, under which memory may be mapped. If the daemon is away, because it restarts under its
 * keeper, the call waits for the next one, so that readers need not wait for this program's next call: at most until two
 * seconds after the loss was noticed. What could not be sent by then goes with the next call of this connection. With rdt_fd
 * it does not wait, and rdt_dispatch sends it. Errors: INVALID, DISCONNECTED, RESTARTED, FORKED. */
enum rdt_status rdt_ready(rdt *rdt, const struct rdt_ref *ref, struct rdt_error *err);

/* Says that the bytes of a pending object will not come. Fetches that wait for it fail with `why` (RDT_OWNER_DIED if it is
 * RDT_OK) and the sentence, and its id is free. Waits as rdt_ready does. The same errors. */
enum rdt_status rdt_fail(rdt *rdt, const struct rdt_ref *ref, enum rdt_status why, const char *sentence, struct rdt_error *err);

/* Drops the producer's hold. The object ends when its last reader, and everybody who holds it by rdt_hold, has let go. With
 * force nobody on any node fetches it any more (FREED) from the moment that this returns; readers that hold it keep it. The
 * call then waits for the nodes that keep a replica of a snapshot, at most the daemon's peer_timeout for one that does not
 * answer, which then serves no replica either. Errors: NOT_FOUND, FREED, DENIED, PEER_LOST. */
enum rdt_status rdt_free(rdt *rdt, const struct rdt_ref *ref, bool force, struct rdt_error *err);

/* Drops the producer's hold as rdt_free does, but does not wait for the answer. For destructors and garbage collectors. If the
 * session outlasts the daemon, the request is repeated at the next one.
 * Errors: INVALID, FORKED, DISCONNECTED. */
enum rdt_status rdt_drop(rdt *rdt, const struct rdt_ref *ref, struct rdt_error *err);

/* ---- holds ----
 * A ref names an object and does not keep it. A process that was handed a ref and will fetch it later takes a hold: like
 * a fetch, but without moving a byte, it keeps the object, on this node or another, until it lets go. Meanwhile the
 * producer may free the object, close its session or be killed; the object's memory stays, also IMPORTED memory if it was a
 * memfd. rdt_free with force ends the hold too: a later fetch is FREED.
 *
 * When you hand a ref on, somebody must hold the object all the time: keep your own hold until the receiver says that its
 * rdt_hold has returned, or call rdt_hand_on before you send the ref, or put the object with RDT_PUT_DETACHED and a ttl_ns
 * that lasts until the ref has arrived.
 *
 * The daemon of the object's node keeps a hold for a session of another node. The hold survives the loss of the link
 * between the daemons for hold_grace of that node, and a restart of either daemon for restart_grace, if that daemon has a
 * keeper. If this node's daemon restarts and cannot take the hold again within restart_grace, rdt_request_status of the hold
 * is PEER_LOST from then on, or what the object's node answered. It keeps the version of a name that came, not the name. Each
 * hold counts under client_max_holds.
 */

/* Takes a hold on the object of ref. Waits until timeout_ns for an id that nobody has put yet, or for a name without a
 * version above `after`. *hold_p is a request that has ended well. The hold ends, without waiting for anything, with
 * rdt_request_destroy, rdt_cancel or the session. Errors: FREED, OWNER_DIED, NOT_FOUND, DENIED (as for a fetch), LIMIT,
 * PEER_LOST, TIMED_OUT. */
enum rdt_status rdt_hold(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p, struct rdt_error *err);

/* Starts rdt_hold and returns. The object is held from the moment that the request has ended well. timeout_ns is the
 * request's. */
enum rdt_status rdt_hold_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p,
                               struct rdt_error *err);

/* The holder of a ref sends it to another process and may let go before that process has a hold. The daemon of the object's
 * node, which may be another node, holds the object for grace_ns (at most its detached_ttl_max), whatever becomes of this
 * session and of the link between the nodes; a rdt_take_over_start of the receiver, on any node, ends that hold early. Call
 * it once for each process that the ref is sent to, before the ref is sent and while this session holds the object. Returns
 * when the object is held. Errors: INVALID (a name, a ref without a generation, a grace_ns of 0), DENIED (another owner's),
 * NOT_FOUND, FREED, OWNER_DIED, NO_MEMORY, PEER_LOST, TIMED_OUT (the other node does not answer). */
enum rdt_status rdt_hand_on(rdt *rdt, const struct rdt_ref *ref, int64_t grace_ns, struct rdt_error *err);

/* rdt_hold_start for a ref that rdt_hand_on announced: when this hold is taken, the one in transit ends. Without one it is
 * rdt_hold_start. */
enum rdt_status rdt_take_over_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p,
                                    struct rdt_error *err);

/* Writes the ref of the held object, with its generation. Errors: AGAIN (it has not ended), INVALID (not a hold), how it
 * failed. */
enum rdt_status rdt_hold_ref(const rdt_request *hold, struct rdt_ref *ref_p, struct rdt_error *err);

/* ---- fetch ---- */

enum rdt_fetch_mode {
    RDT_FETCH_AUTO = 0,  /* share on this node, copy from another */
    RDT_FETCH_SHARE = 1, /* this node only, read-only, constant time at any size */
    RDT_FETCH_COPY = 2,  /* private, writable */
    /* Private and writable, in constant time: pages are copied when they are written. This is possible for a snapshot, and for
     * an object all of whose bytes librdt has copied for a put without flags that only its owner may see. Another live object
     * is copied. */
    RDT_FETCH_COW = 3,
};

/* A box of one tensor: elements [start[d], start[d] + count[d]) in every dimension d. */
struct rdt_slice {
    uint32_t ndim;        /* the tensor's number of dimensions; 0: the whole tensor */
    const int64_t *start; /* [ndim] */
    const int64_t *count; /* [ndim] */
};

struct rdt_fetch_options {
    size_t struct_size;
    enum rdt_fetch_mode mode;
    int64_t timeout_ns;    /* of every request, from its start to its last byte; 0 or negative: without end */
    const char *transport; /* fetch only by this transport; NULL: any */
    /* Refuse slower paths (NO_PATH): "share", "cow", "copy", "inline" or a transport's name. "direct" refuses a
     * path between nodes that goes through host memory although the bytes lie, or shall lie, on a device. NULL:
     * any path. */
    const char *least_path;
    /* NULL, or [refs]: slices[i] is NULL (whole tensors) or has one entry for each tensor of the i-th object. */
    const struct rdt_slice *const *slices;
    const size_t *slice_counts; /* [refs] the number of entries of slices[i] */
    /* NULL, or [refs]: targets[i] is NULL or receives the tensors of the i-th object. The targets are
     * contiguous and have the same count, dtypes and shapes as the tensors after slicing; MISMATCH names the
     * first that does not, before anything is written. They must stay valid until the request ends, also after
     * a cancel or time-out: rdt_request_destroy returns when nothing writes there any more. Memory of rdt_alloc
     * or rdt_import may be given back earlier: the daemon keeps it. */
    const struct rdt_tensor *const *targets;
    const size_t *target_counts; /* [refs] */
    const char *group;           /* fetch only within this group (rdt_group_create); NULL: the first group that both nodes
                        * share, if a path needs one */
    /* Where the tensors shall be if there are no targets. NULL: on this node where they lie, if this process
     * can map that (rdt_map_by), else in host memory; from another node in host memory. "host", or a kind and
     * the uuid of its device (NULL: the only one): they are moved there. */
    const char *memory, *device;
    bool host_stays; /* with a kind other than host: only tensors on devices are moved there, others stay in
                      * host memory */
    /* Bring the metadata, dtypes and shapes of the objects and no bytes: every tensor's data is NULL, and nothing
     * holds the object afterwards. For choosing targets; slices and targets must be NULL. */
    bool metadata_only;
};

/* Starts fetching refs [count] and returns. requests_p [count] receives a request for each, which the caller destroys. A
 * fetch waits for an id until somebody puts it, and for a name until it has a version above `after`; versions in between
 * may never be seen. Equal refs with equal slices and without targets share one transfer. count may be 0. */
enum rdt_status rdt_fetch_start(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                                rdt_request **requests_p, struct rdt_error *err);

/* Fetches refs [count] and waits for all. objects_p [count] receives the objects, which the caller releases. If one fails,
 * the others are cancelled and the call fails with its error. */
enum rdt_status rdt_fetch(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                          rdt_object **objects_p, struct rdt_error *err);

/* ---- requests ---- */

#define RDT_WAIT_ALL ((size_t)-1)

/* Waits until how_many of requests [count] (RDT_WAIT_ALL: every one) have ended, one has failed, or timeout_ns is over.
 * done_p, if not NULL, is [count] and receives which have ended; *n_done_p, if not NULL, how many. RDT_OK: how_many have
 * ended well. A request failed: its status and sentence, at once. TIMED_OUT: fewer have ended; nothing is cancelled. */
enum rdt_status rdt_wait(rdt *rdt, rdt_request *const *requests, size_t count, size_t how_many, int64_t timeout_ns,
                         bool *done_p, size_t *n_done_p, struct rdt_error *err);

/* Says how the request ended; AGAIN while it runs. Never blocks, and does not read the socket: rdt_dispatch does. */
enum rdt_status rdt_request_status(const rdt_request *request, struct rdt_error *err);

/* Moves the object of a fetch that ended well to the caller, once. Errors: AGAIN (it has not ended), INVALID (not a fetch,
 * or taken before), how it failed. */
enum rdt_status rdt_request_take_object(rdt_request *request, rdt_object **object_p, struct rdt_error *err);

/* Ends the request with CANCELLED now, unless it has ended. A hold that ended well lets go, and is CANCELLED from then on.
 * The daemon releases the memory when nothing touches it any more; other transfers of the same object go on. */
void rdt_cancel(rdt_request *request);

/* Frees the request: cancels it if it runs, releases an object that was not taken, and lets go of what it holds. request
 * may be NULL. */
void rdt_request_destroy(rdt_request *request);

/* Returns an fd that is readable when rdt_dispatch has something to do: for poll, epoll, libuv, asyncio. It belongs to the
 * connection. -1: rdt is NULL, or of another process. */
int rdt_fd(const rdt *rdt);

/* Does everything that does not block: reads answers, and ends requests whose time is over. *n_ended_p, if not NULL,
 * receives how many requests have ended since the last rdt_dispatch, also those of rdt_fetch and rdt_wait: a hint to ask
 * rdt_request_status. */
enum rdt_status rdt_dispatch(rdt *rdt, size_t *n_ended_p, struct rdt_error *err);

/* ---- fetched objects ---- */

size_t rdt_object_count(const rdt_object *object);

/* Writes tensor i. Its shape, strides (NULL only if ndim is 0) and data are borrowed from the object, until rdt_release. */
enum rdt_status rdt_object_tensor(const rdt_object *object, size_t i, struct rdt_tensor *tensor_p, struct rdt_error *err);

const void *rdt_object_metadata(const rdt_object *object, size_t *bytes_p); /* NULL with 0 bytes if there is none */

/* Writes of which larger tensor tensor i is a box; the pointers are borrowed from the object, and none is NULL but key, if the
 * tensor is no part of a larger one. Of a fetch with slices no tensor is. Errors: INVALID. */
enum rdt_status rdt_object_shard(const rdt_object *object, size_t i, struct rdt_shard *shard_p, struct rdt_error *err);

struct rdt_object_info {
    struct rdt_ref ref; /* with the true generation */
    char path[32];      /* "local/same", "local/share", "local/cow", "local/copy", "inline", or the transport's name */
    uint64_t transfer;  /* the number for rdtctl explain; 0 if no daemon was asked and nothing moved */
    uint64_t bytes_moved;
    int64_t elapsed_ns;  /* time spent in the daemon */
    bool writable;       /* false: writing to the tensors is a fault */
    bool mutable_shared; /* true, once for each object: its producer may still write what is read here */
    uint64_t version;    /* of the name, if the ref was a name; `after` for the next fetch */
};

/* Writes the kind ("host") of the memory of tensor i and the uuid of its device ("" for host memory). Both are borrowed
 * from the object. */
enum rdt_status rdt_object_place(const rdt_object *object, size_t i, const char **memory_p, const char **device_p,
                                 struct rdt_error *err);

void rdt_object_info(const rdt_object *object, struct rdt_object_info *info_p);

/* Ends a fetch: drops the hold. The memory is unmapped, or cached for what this process fetches next: the caller must not
 * touch it any more. object may be NULL. */
void rdt_release(rdt_object *object);

/* Between rdt_cork and rdt_uncork the messages of rdt_release, rdt_drop, rdt_cancel and rdt_request_destroy are sent
 * together: each message of its own wakes the daemon, which takes longer than the message. They are sent with the next
 * call, from any thread, that asks the daemon for something, waits, dispatches or closes, and whenever 64 have gathered.
 * Until then the daemon keeps what was released, so uncork soon. Corks nest. rdt may be NULL. */
void rdt_cork(rdt *rdt);
void rdt_uncork(rdt *rdt);

/* ---- published names ----
 * A name has a newest version, as model weights do. The producer puts an object (best as a snapshot), publishes it under
 * the name, and frees its own hold; readers fetch the name and wait for the next version. The name lives on the node of
 * the object, in the name space of the object's owner. It holds the newest version only: older ones end when their last
 * reader lets go. The name stays until rdt_unpublish, unless its last publish gave it a lease or a time to live.
 */

struct rdt_publish_options {
    size_t struct_size;
    enum rdt_visibility visibility; /* who may fetch by the name: not wider than the object's, and the same in each
                               * publish of a name */
    struct rdt_ref *name_ref; /* NULL, or receives a ref of the name for any node, any user and any version (`after` is 0) */
    bool lease;               /* the name ends with this session: waits for a later version get OWNER_DIED */
    int64_t ttl_ns;           /* the name ends when nothing is published under it for so long: FREED; 0: it does not */
};

/* Makes the object the next version of the name. *version_p, may be NULL, receives its number: from 1 on, each one more
 * than the last, and never given twice while the daemon runs. Fetches that wait for it go on. The name holds the object,
 * also after this session. Errors: INVALID (a name of 0 or more than 128 bytes; the visibility; a negative ttl_ns),
 * NOT_FOUND, FREED, OWNER_DIED, DENIED (another owner's object), EXISTS (the name is published on another node of the node
 * table, which the sentence names; rdt-network(7), DIRECTORY), LIMIT (owner_max_names), UNSUPPORTED (a lease for an object of
 * another node), PEER_LOST. */
enum rdt_status rdt_publish(rdt *rdt, const char *name, const struct rdt_ref *object, const struct rdt_publish_options *options,
                            uint64_t *version_p, struct rdt_error *err);

/* Ends the name, given as a ref of rdt_ref_from_name or rdt_publish (its `after` is not used): the name lets go of its
 * object. Fetches and waits with an `after` above 0 get FREED, also later ones; with 0 they wait until somebody publishes
 * again. Errors: NOT_FOUND, DENIED, INVALID (the ref of an object), PEER_LOST. */
enum rdt_status rdt_unpublish(rdt *rdt, const struct rdt_ref *name, struct rdt_error *err);

/* Makes *ref, of rdt_ref_from_name or rdt_ref_from_id, mean what another user has under that id. user: a login name or a
 * uid in decimal. The tenant is the ref's, or this session's if the ref gives no owner. Errors: INVALID (no such user). */
enum rdt_status rdt_ref_set_owner(const rdt *rdt, struct rdt_ref *ref, const char *user, struct rdt_error *err);

/* ---- waiting ---- */

/* Waits until the object is put, or the name has a version above `after` (FREED if the name was ended). */
enum rdt_status rdt_wait_put(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err);

/* Waits until no hold and no transfer of the object is left on any node: then its memory may be written again. The
 * producer's own hold counts, so free the object first; so does every rdt_hold. Replicas on other nodes do not count.
 * RDT_OK if the object has ended already. TIMED_OUT: the sentence names the first holders by client name and process id, or
 * by node, as far as this session may see them (rdt_holders of rdt_info.h). */
enum rdt_status rdt_wait_freed(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err);

/* Waits as rdt_wait_freed does for every object that overlaps [addr, addr + bytes) of memory of rdt_alloc,
 * rdt_import or rdt_import_shared. TIMED_OUT: the sentence names one such object and its holders. */
enum rdt_status rdt_wait_freed_range(rdt *rdt, const void *addr, size_t bytes, int64_t timeout_ns, struct rdt_error *err);

/* Start the three waits above and return: for event loops, and for waiting beside fetches (rdt_wait). timeout_ns is the
 * request's. The caller destroys *request_p. A wait for what is true already ends when the answer is read. Also INVALID: a
 * range of 0 bytes. */
enum rdt_status rdt_wait_put_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                   struct rdt_error *err);
enum rdt_status rdt_wait_freed_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                     struct rdt_error *err);
enum rdt_status rdt_wait_freed_range_start(rdt *rdt, const void *addr, size_t bytes, int64_t timeout_ns,
                                           rdt_request **request_p, struct rdt_error *err);

/* ---- events ----
 * Changes of the daemon's tables as they happen: rdtctl watch for programs. A session sees what belongs to its owner,
 * what is visible to it, and all nodes; root sees everything. A session that reads too slowly loses events, is told how
 * many, and delays nobody.
 */
enum rdt_kind {                       /* flags; the comments list what rdt_event.what may be */
                RDT_KIND_OBJECTS = 1, /* awaited, filling, put, freed, detached (its client has ended), draining, gone */
                RDT_KIND_REGIONS =
                    2, /* new, sealed (it has become a snapshot), kept (it has become a replica), gone; cached ones too */
                RDT_KIND_CLIENTS = 4, /* connected, gone */
                /* new, connecting, up, down, unreachable, idle (the back-off is over), renamed, gone (it is a peer known
                 * already) */
                RDT_KIND_PEERS = 8,
                RDT_KIND_BACKENDS = 16,  /* loaded, unavailable (it is about to be unloaded), unloaded */
                RDT_KIND_TRANSFERS = 32, /* began, ended */
                RDT_KIND_NAMES = 64,     /* published, freed (its newest version, by force), unpublished */
                RDT_KIND_OWNERS = 128,   /* new (an owner who had nothing on this node), gone (nothing of the owner is left) */
                RDT_KIND_GROUPS = 256,   /* forming, ready, broken, down, ending, gone */
};

/* Watches these kinds from now on, in place of those before; 0: none. What exists already is not reported: watch first,
 * then list. UNSUPPORTED: the daemon does not report one of the kinds. */
enum rdt_status rdt_watch(rdt *rdt, uint32_t kinds, struct rdt_error *err);

struct rdt_event {
    uint64_t sequence; /* counts the events of this rdt_watch from 1 on, lost ones included */
    /* How many events right before this one were lost because they were not taken in time; a restart of the daemon counts as
     * one. */
    uint64_t lost;
    enum rdt_kind kind; /* 0 if `what` is "lost": then only `lost` is set */
    char what[16];      /* as above */
    char state[16];     /* of an object, peer, transfer or group; a region's origin; a backend's kind: "memory", "transport" */
    /* Generation of an object, number of a region, client or transfer, version of a name, epoch of a group. */
    uint64_t id;
    uint64_t bytes; /* of an object, region, transfer, or a name's newest version */
    uint32_t uid;   /* with tenant: the owner, if it has one */
    char tenant[33];
    /* A name, id of an object, path of a transfer, name of a client, peer, backend or group; as rdtctl shows it. */
    char name[400];
    struct rdt_ref ref; /* of an object, of what a transfer moves, of a name's newest version; id_bytes 0: none */
};

/* Takes the next event, in the order in which they happened. rdt_fd is readable while there is one; in an event loop call
 * this with timeout_ns 0 until TIMED_OUT. Errors: TIMED_OUT (none came), INVALID (nothing is watched), DISCONNECTED. */
enum rdt_status rdt_next_event(rdt *rdt, int64_t timeout_ns, struct rdt_event *event_p, struct rdt_error *err);

/* ---- backends: for root and the daemon's own user ---- */

/* Loads the plug-in at `path` into the running daemon, which offers it to every node at once, until the daemon ends.
 * settings, may be NULL, are "KEY=VALUE" strings for the plug-in's section of the configuration, ended by NULL. Only root
 * and the daemon's user may be able to write the file and every folder on its path. timeout_ns bounds the wait; the loading
 * goes on. Errors: DENIED (the caller, or the file), NOT_FOUND (no such file), INVALID (not a plug-in, an operation is
 * missing, an unknown key), UNSUPPORTED (another ABI version, or not available here; the sentence says why), EXISTS (the
 * name is taken), BUSY (another change is under way), TIMED_OUT, and what the plug-in's open failed with. */
enum rdt_status rdt_backend_load(rdt *rdt, const char *path, const char *const *settings, int64_t timeout_ns,
                                 struct rdt_error *err);

/* Unloads a plug-in, named by its own name, its transport's or its memory kind's. Its connections to other nodes end first.
 * Errors: BUSY (it is in use, the sentence says by whom; or another change is under way), NOT_FOUND, INVALID (host memory),
 * DENIED, TIMED_OUT (the unloading goes on). */
enum rdt_status rdt_backend_unload(rdt *rdt, const char *name, int64_t timeout_ns, struct rdt_error *err);

struct rdt_stat {
    struct rdt_ref ref;
    char state[16]; /* "awaited", "filling", "live", "draining" */
    uint64_t bytes; /* of all tensors */
    size_t tensors, metadata_bytes;
    uint32_t holds, pins, waiters;
    int64_t age_ns;
    bool snapshot, detached;
    int64_t ttl_left_ns; /* of a detached object whose session has ended; -1: no end is set */
};
/* Describes an object, or the object of a name's newest version; rdt_holders (rdt_info.h) also says who holds it. Errors:
 * NOT_FOUND (nobody has put it or waits for it), FREED, DENIED, PEER_LOST. */
enum rdt_status rdt_stat(rdt *rdt, const struct rdt_ref *ref, struct rdt_stat *stat_p, struct rdt_error *err);

#ifdef __cplusplus
}
#endif

#include "rdt_devices.h"
#include "rdt_groups.h"

#endif
