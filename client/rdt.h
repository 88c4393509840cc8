/* SPDX-License-Identifier: Apache-2.0 */
/* librdt: put, fetch, wait for and free tensors through the rdtd of this node.
 *
 *     rdt_connect(NULL, &c, &err);
 *     rdt_put(c, &tensor, 1, NULL, &ref, &err);            ...   rdt_fetch(c, &ref, 1, NULL, &object, &err);
 *
 * The bytes of an object of up to 32 KiB travel in messages. The memory of a larger object is shared by file descriptor on
 * one node, and its bytes are moved from daemon to daemon between nodes.
 *
 * Conventions
 * - Every function that can fail returns enum rdt_status (0 is RDT_OK) and fills err, which may be NULL, with one sentence.
 *   Results (..._p) are written only on success.
 * - A time-out, timeout_ns, is in nanoseconds from the call on. It means the same everywhere:
 *
 *       timeout_ns      as a parameter                             as a member of an options struct
 *       0               does not wait: reports the present state   the default, which the member's comment states
 *       RDT_NO_WAIT     -                                          does not wait, as 0 does as a parameter
 *       positive        waits at most that long, then TIMED_OUT    the same
 *       negative        waits for ever (RDT_FOREVER)               the same
 *
 *   The daemon ends a request when its time-out has passed, and says what it was waiting for. If the daemon is stopped, librdt
 *   ends the call itself, at most 50 ms later. A call that does not wait still gives the daemon 200 ms to answer, and to
 *   deliver the bytes of an object that exists. It ends with NOT_PUT if nobody has put the object or published the version.
 *   THE DEFAULT, and the time of a call that takes no time-out, is one minute, and one second more for each 64 MiB that the
 *   call allocates, copies or reads; then the call ends with TIMED_OUT. It is another one where a comment says so: rdt_connect
 *   takes 10 s, and what waits for other programs (rdt_fetch) has no limit.
 * - Thread-safe: any call may be made from any thread on one connection, except that a request, an object or a memory range
 *   must not be destroyed while another thread still uses it. librdt starts no thread: a call that waits serves the socket.
 * - After a fork, every call on the child's copy of a connection, and on everything made from it, returns RDT_FORKED. The child
 *   may call rdt_close to unmap its copy, connects anew, and never disturbs the parent. Bytes that the parent releases may
 *   change or vanish in the child, too. The child may read all other memory, even after the parent has ended.
 * - Options structs begin with struct_size: set it by RDT_INIT, e.g. struct rdt_put_options o = RDT_INIT(o).
 * - A daemon with a keeper may be killed and started again: the session continues at the new daemon, and calls only take
 *   longer. Calls that wait, and rdt_dispatch, connect to it by themselves; rdt-concepts(7) lists the few requests that end
 *   with RDT_RESTARTED.
 * - Any call on a lost connection returns RDT_DISCONNECTED, or RDT_RESTARTED if the daemon restarted without the session.
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
typedef struct rdt_object rdt_object;   /* the result of a fetch: tensors, metadata, a hold */

/* ---- connection ---- */

struct rdt_connect_options {
    size_t struct_size;
    const char *socket;  /* NULL: $RDT_SOCKET, else /run/rdtd/rdtd.sock */
    const char *name;    /* shown by rdtctl; NULL: the program's name */
    int64_t timeout_ns;  /* 0: 10 s; negative: no limit */
    uint32_t daemon_uid; /* the user that the daemon runs as; 0: $RDT_DAEMON_UID, else see below */
};

/* Connects to the daemon and begins a session. The caller ends *rdt_p with rdt_close. options may be NULL.
 *
 * The kernel says who serves the socket, at this and every later connect of the session. Root and this process's own user may,
 * and the user named by daemon_uid or $RDT_DAEMON_UID. If none is named, so may the owner of the socket's folder, provided
 * that nobody else but root and this process's user can write there, or replace a folder or a symbolic link of the path.
 *
 * Errors: SYSTEM (the socket does not exist, or this user may not open it; the sentence says what to do), DENIED (the daemon
 * refuses this user, or another user serves the socket), LIMIT (too many clients), INVALID ($RDT_DAEMON_UID is no uid),
 * PROTOCOL (no common version), TIMED_OUT, DISCONNECTED (no daemon listens; if a killed daemon has left its socket behind,
 * the call waits up to 2 s for a new one). */
enum rdt_status rdt_connect(const struct rdt_connect_options *options, rdt **rdt_p, struct rdt_error *err);

/* Ends the session: cancels its requests, unmaps all memory that came from it, and drops its holds. Objects that it put
 * without RDT_PUT_DETACHED are freed. Every request, object and pointer that came from it is invalid afterwards. rdt may be
 * NULL.
 *
 * A device may still copy for a fetch that was given up (rdt-gpu(7)): the call waits for it, at most 10 s. Then it returns, and
 * the session goes on, with its memory and the objects that it put, until the device has made the copy and the program calls
 * rdt_connect or rdt_close again, or until the process ends. The targets must not be used before the device has come so far
 * (cuCtxSynchronize). The same holds while the library of a mapper still uses the session (rdt_cuda_close). */
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

/* Lets calls of this thread be interrupted, for languages whose signal handlers run in the thread that waits. A call of any
 * connection that waits, rdt_connect among them, or that copies much memory, calls interrupted(arg) every 100 ms, and at once
 * when a signal has ended a system call. If that returns true, the call ends with CANCELLED, as at its deadline: a put has no
 * object, an allocation no memory, and a request that was started goes on. From then on no call of this thread waits any more,
 * until the next rdt_interrupt_by. Otherwise the call goes on, with the deadline that it had. The function is called without
 * locks of the library and may call it, but not close the connection; its own calls are interrupted only if it says by whom.
 * NULL: calls are not interrupted, as at the beginning. */
void rdt_interrupt_by(bool (*interrupted)(void *arg), void *arg);

/* For what waits for something else on behalf of a call, such as librdt-cuda: asks that function, at most every 100 ms, and
 * returns whether the call should end with CANCELLED. Call it without locks, because the function may run any code. */
bool rdt_interrupted(void);

/* ---- memory ----
 * rdt_put finds out from the address of a tensor which memory holds its bytes, and reports it (rdt_put_options.how):
 *   DAEMON    memory of rdt_alloc: the object refers to it, no copy
 *   IMPORTED  the caller's memfd, offered by rdt_import: no copy; readers of other owners get copies
 *   COPIED    any other memory: rdt_put copies it once, and later writes are not seen
 * If all tensors of an object are copied and have at most 32 KiB together, their bytes travel in the message: the put takes
 * one round trip, and nothing is mapped. Every reader gets a copy, and a fetch with RDT_FETCH_SHARE fails with NO_PATH. More
 * bytes are copied into memory of the daemon. It counts that memory under its limits, and the system charges the pages to the
 * daemon's control group.
 */
enum rdt_memory { RDT_MEMORY_DAEMON = 1, RDT_MEMORY_IMPORTED = 2, RDT_MEMORY_COPIED = 3 };

/* Allocates `bytes` of zeroed, page-aligned host memory in the daemon and maps it writable; *addr_p receives its address. The
 * memory is reserved at once. An object that was put from it keeps the memory alive after rdt_dealloc. Errors: NO_MEMORY,
 * LIMIT, INVALID (0 bytes). */
enum rdt_status rdt_alloc(rdt *rdt, size_t bytes, void **addr_p, struct rdt_error *err);

struct rdt_alloc_options {
    size_t struct_size;
    int64_t timeout_ns;      /* how long the daemon may wait for room under a limit; 0: not at all; negative: no limit */
    const char *memory;      /* the kind; NULL: "host". Another kind needs a mapper (rdt_map_by), and *addr_p is an
                         * address of the device */
    const char *device;      /* the uuid of the device; NULL: the only one there is */
    int64_t call_timeout_ns; /* of the whole call; 0: timeout_ns and the default; negative: no limit */
    bool written_whole;      /* device memory: the caller writes all of it before anybody reads it. Instead of zeros it may then
                              * contain bytes that this user had there before. Host memory is always zeroed */
};

/* Allocates as rdt_alloc does, with options. A request that waits for room holds nothing, and later requests of the same user
 * do not overtake it. A request that could never fit is refused at once. Errors: those of rdt_alloc, and TIMED_OUT (no room
 * became free in time; the sentence says what the request waited for). */
enum rdt_status rdt_alloc_with(rdt *rdt, size_t bytes, const struct rdt_alloc_options *options, void **addr_p,
                               struct rdt_error *err);

/* Releases the range that starts at addr and came from rdt_alloc, rdt_import or rdt_import_shared. Memory of rdt_alloc is
 * unmapped, or cached for a later allocation or fetch of this process: the caller must not touch it any more. Imported memory
 * stays mapped by the caller, and the daemon forgets it. Objects that were put from the range stay. Errors: INVALID (no such
 * range starts at addr), TIMED_OUT, DISCONNECTED. */
enum rdt_status rdt_dealloc(rdt *rdt, void *addr, struct rdt_error *err);

/* Releases a range as rdt_dealloc does, without waiting for the daemon: memory of rdt_alloc is unmapped when the daemon has
 * answered, and is not cached. For threads that must not block while the daemon is stopped. */
enum rdt_status rdt_dealloc_soon(rdt *rdt, void *addr, struct rdt_error *err);

/* Makes a memfd known to the daemon. The caller has mapped its first `bytes` bytes at addr, as a shared mapping. The fd is
 * borrowed, and may be closed afterwards. The memfd must be sealed against shrinking: fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK).
 * If the memfd has holes, the daemon creates the missing pages when it copies to or from them, and charges them to this
 * client; if they do not fit its limits, the request that needs them fails with LIMIT or NO_MEMORY. Errors: INVALID (not a
 * memfd, shorter than `bytes`, not sealed, or the range overlaps one that the daemon knows), LIMIT. */
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

/* Describes a tensor as a box of a larger one, such as a parameter of a model that several processes hold in shards. The box
 * begins at `start` and has the tensor's own shape. */
struct rdt_shard {
    const char *key;             /* names the larger tensor: 1..256 bytes; NULL: the tensor is no part of a larger one */
    const int64_t *global_shape; /* [ndim of the tensor] elements of the larger tensor; NULL: the tensor's own shape */
    const int64_t *start;        /* [ndim of the tensor]; NULL: all 0 */
};

struct rdt_put_options {
    size_t struct_size;
    const void *id;       /* the caller's name for the object, unique for its uid and tenant; NULL: generated */
    size_t id_bytes;      /* 1..RDT_ID_MAX_BYTES (rdt_ref.h) */
    const void *metadata; /* opaque; every reader gets it; at most 8 MiB */
    size_t metadata_bytes;
    enum rdt_visibility visibility; /* who else may fetch the object; default: this uid (and tenant) only */
    const char *transport;          /* preferred between nodes; NULL: the daemon chooses */
    uint32_t flags;                 /* enum rdt_put_flags; UNSUPPORTED: this version does not know a flag */
    int64_t timeout_ns;             /* limits the call, including the wait for room under a limit; 0: the default for what the
                                     * daemon does, without a wait for room; negative: no limit, without a wait for room */
    enum rdt_memory *how;           /* NULL, or [count]: receives which memory each tensor was in */
    int64_t ttl_ns;                 /* for RDT_PUT_DETACHED: when the object ends, counted from the put, whether or not the
                                     * session goes on; 0: ten minutes; LIMIT: above the daemon's detached_ttl_max. The same
                                     * for RDT_PUT_EVICTABLE, where 0 is no limit */
    const struct rdt_shard *shards; /* NULL, or [count]: the larger tensor of which each tensor is a box. INVALID: a box that
                                     * ends outside its larger tensor. Readers call rdt_object_shard; rdt_plan.h needs it */
    uint32_t priority; /* of RDT_PUT_EVICTABLE: 0 to RDT_PRIORITY_MOST. Of one user's objects all of lower priority are
                                     * evicted before any of a higher one. INVALID: above that, or without that flag */
};

/* Creates an object from tensors [count]. This takes one round trip, or two if bytes are copied into a region of the daemon
 * and librdt has no region left from an earlier put. The tensors are borrowed during the call. They may overlap, repeat and
 * be empty; count may be 0. The object refers to the tensors' memory and is live: readers see later writes, so write there
 * again only after rdt_wait_freed. Bytes that were copied do not change. The object exists until it is freed or this session
 * ends. With RDT_PUT_SNAPSHOT the call returns when the copy is complete; after TIMED_OUT there is no object. Errors: INVALID
 * (the sentence names the tensor), EXISTS (the id), LIMIT, NO_MEMORY, TIMED_OUT, UNSUPPORTED (the transport is not loaded, or
 * does not move such memory). */
enum rdt_status rdt_put(rdt *rdt, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                        struct rdt_ref *ref_p, struct rdt_error *err);

/* Stores an object, or the newest version of a name, in the storage_dir of its daemon, so that it survives the daemon and a
 * reboot of its node. Starts to write, unless RDT_PUT_STORED has done so, and waits until the object is on disk with all
 * names under which it is published. After a restart, the daemon restores the objects that outlast sessions: those of
 * published names without a lease, and DETACHED objects, whose ttl_ns begins again. When an object ends, its file is removed.
 * timeout_ns limits the wait; after TIMED_OUT the daemon goes on writing. file_p [file_bytes], may be NULL, receives the
 * file's path on that node. Errors: UNSUPPORTED (the daemon stores nothing; memory on a device), INVALID (the object is not a
 * snapshot), LIMIT (storage_max, or owner_max_stored_bytes of the object's owner), SYSTEM (the disk is full or failed; the
 * sentence names the file, the object stays in memory, and a later call tries again), FREED, DENIED (another owner's object),
 * NOT_FOUND, TIMED_OUT, PEER_LOST. */
enum rdt_status rdt_store(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, char *file_p, size_t file_bytes,
                          struct rdt_error *err);

/* Declares that the bytes of an object that was put with RDT_PUT_PENDING have been written. The object becomes live (a
 * snapshot is copied first), and fetches that wait for it continue. Does not wait for an answer; the message is repeated as
 * that of rdt_drop is. Does nothing if the object is not pending. May be called from any thread, but not from a callback in
 * which a device driver forbids blocking: it takes the connection's lock, which other threads hold while they map memory.
 * While the daemon restarts under its keeper, the call waits for the new daemon, for at most two seconds after the loss was
 * noticed, so that readers do not depend on this program's next call. A message that could not be sent by then is sent with
 * the next call on this connection. In a program that uses rdt_fd the call does not wait, and rdt_dispatch sends the message.
 * Errors: INVALID, DISCONNECTED, RESTARTED, FORKED. */
enum rdt_status rdt_ready(rdt *rdt, const struct rdt_ref *ref, struct rdt_error *err);

/* Declares that the bytes of a pending object will not be written. Fetches that wait for it fail with `why` (RDT_OWNER_DIED
 * if it is RDT_OK) and the sentence, and its id is free again. Waits as rdt_ready does, and has the same errors. */
enum rdt_status rdt_fail(rdt *rdt, const struct rdt_ref *ref, enum rdt_status why, const char *sentence, struct rdt_error *err);

/* Drops the producer's hold. The object ends when its last reader has released it and the last rdt_hold on it has ended. With
 * force, every fetch that begins after this call has returned fails with FREED, on any node; readers that have fetched the
 * object keep it. For that, the call waits for the nodes that have a replica of a snapshot. If one does not answer, the call
 * waits at most the daemon's peer_timeout, after which that node serves no replica either. Errors: NOT_FOUND, FREED, DENIED,
 * PEER_LOST. */
enum rdt_status rdt_free(rdt *rdt, const struct rdt_ref *ref, bool force, struct rdt_error *err);

/* Drops the producer's hold as rdt_free does, but does not wait for the answer. For destructors and garbage collectors. If
 * the session continues after a restart of the daemon, the request is repeated there. Errors: INVALID, FORKED, DISCONNECTED. */
enum rdt_status rdt_drop(rdt *rdt, const struct rdt_ref *ref, struct rdt_error *err);

/* ---- holds ----
 * A ref names an object and does not keep it alive. A process that has received a ref and will fetch the object later takes a
 * hold: like a fetch, but without moving a byte, the hold keeps the object alive, on this node or another, until it is
 * released. Meanwhile the producer may free the object, close its session or be killed; the object's memory stays, even
 * IMPORTED memory if it was a memfd. rdt_free with force ends holds, too: a later fetch fails with FREED.
 *
 * When you send a ref to another process, the object must be held all the time: keep your own hold until the receiver says that
 * its rdt_hold has returned, or call rdt_hand_on before you send the ref, or put the object with RDT_PUT_DETACHED and a ttl_ns
 * that lasts until the ref has arrived.
 *
 * The hold of a session of another node is recorded by the daemon of the object's node. If the link between the daemons is
 * lost, the hold survives for the hold_grace of that node; if either daemon restarts and has a keeper, for restart_grace. If
 * this node's daemon restarts and cannot take the hold again within restart_grace, rdt_request_status of the hold returns
 * PEER_LOST from then on, or the error of the object's node. A hold that was taken by a name holds the version that it found,
 * not the name. Each hold counts under client_max_holds.
 */

/* Takes a hold on the object of ref. Waits until timeout_ns for an id that nobody has put yet, or for a name without a
 * version above `after`. *hold_p receives a request that has succeeded. rdt_request_destroy, rdt_cancel and the end of the
 * session release the hold, without waiting for anything. Errors: FREED, OWNER_DIED, NOT_FOUND, DENIED (as for a fetch),
 * LIMIT, PEER_LOST, TIMED_OUT. */
enum rdt_status rdt_hold(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p, struct rdt_error *err);

/* Starts rdt_hold and returns. The object is held from the moment at which the request succeeds. timeout_ns limits the
 * request. */
enum rdt_status rdt_hold_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p,
                               struct rdt_error *err);

/* Keeps an object alive while its ref is on the way to another process, so that the caller need not hold it until that
 * process has a hold. The daemon of the object's node, which may be another node, holds the object for grace_ns (at most its
 * detached_ttl_max), whatever happens to this session and to the link between the nodes; when the receiver calls
 * rdt_take_over_start, on any node, that hold ends early. Call rdt_hand_on once for each process to which you send the ref,
 * before you send it and while this session holds the object. Returns when the object is held. Errors: INVALID (a name, a ref
 * without a generation, a grace_ns of 0), DENIED (another owner's object), NOT_FOUND, FREED, OWNER_DIED, NO_MEMORY,
 * PEER_LOST, TIMED_OUT (the other node does not answer). */
enum rdt_status rdt_hand_on(rdt *rdt, const struct rdt_ref *ref, int64_t grace_ns, struct rdt_error *err);

/* Starts rdt_hold for a ref for which rdt_hand_on was called: when this hold is taken, the hold in transit ends. One that times
 * out or is cancelled leaves the hold in transit, and may be repeated. If there is no hold in transit, the call is
 * rdt_hold_start. */
enum rdt_status rdt_take_over_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p,
                                    struct rdt_error *err);

/* Writes the ref of the held object, with its generation. Errors: AGAIN (the request has not ended), INVALID (not a hold), or
 * the error with which the request failed. */
enum rdt_status rdt_hold_ref(const rdt_request *hold, struct rdt_ref *ref_p, struct rdt_error *err);

/* ---- fetch ---- */

enum rdt_fetch_mode {
    RDT_FETCH_AUTO = 0,  /* share on this node, copy from another */
    RDT_FETCH_SHARE = 1, /* this node only, read-only, constant time at any size */
    RDT_FETCH_COPY = 2,  /* private, writable */
    /* Private and writable, in constant time: pages are copied when they are written. This is possible for a snapshot, and for
     * an object that only its owner may see and whose bytes librdt has copied for a put without flags. Any other live object is
     * copied. */
    RDT_FETCH_COW = 3,
};

/* A box of one tensor: the elements [start[d], start[d] + count[d]) in every dimension d below ndim, and all in the others. A
 * count of 0: nothing of the tensor. */
struct rdt_slice {
    uint32_t ndim;        /* at most the tensor's number of dimensions; 0: the whole tensor */
    const int64_t *start; /* [ndim] */
    const int64_t *count; /* [ndim] */
};

struct rdt_fetch_options {
    size_t struct_size;
    enum rdt_fetch_mode mode;
    int64_t timeout_ns;    /* limits each request, from its start to its last byte; 0 or negative: no limit */
    const char *transport; /* fetch only by this transport; NULL: any */
    /* The slowest acceptable path: "share", "cow", "copy", "inline" or a transport's name. NO_PATH: there are only slower
     * ones. "direct" refuses a path between nodes that goes through host memory although the bytes lie, or are to be placed,
     * on a device. NULL: any path. */
    const char *least_path;
    /* NULL, or [refs]: slices[i] is NULL (whole tensors) or has one entry for each tensor of the i-th object. */
    const struct rdt_slice *const *slices;
    const size_t *slice_counts; /* [refs] the number of entries of slices[i] */
    /* NULL, or [refs]: targets[i] is NULL or receives the tensors of the i-th object. The targets are
     * contiguous and have the same count, dtypes and shapes as the tensors after slicing; MISMATCH names the
     * first that does not, before anything is written. INVALID: two of them, of one object or of
     * two, share memory, or one lies in memory of a live object that is fetched, other than where its tensor is. They must stay
     * valid until the request has ended, and after a cancel or time-out until rdt_request_destroy has returned, which waits
     * until nothing writes there any more. Memory of rdt_alloc or rdt_import may be released earlier, because the daemon keeps
     * it; after a cancel or time-out it, or a device, may write there until rdt_wait_freed_range returns. */
    const struct rdt_tensor *const *targets;
    const size_t *target_counts; /* [refs] */
    const char *group;           /* fetch only within this group (rdt_group_create); NULL: the first group that both nodes
                        * share, if a path needs one */
    /* Where the tensors are placed if there are no targets. NULL: tensors of this node stay where they lie if this process
     * can map that memory (rdt_map_by), and go to host memory otherwise; tensors of another node go to host memory. "host",
     * or another kind and the uuid of its device (NULL: the only one): the tensors are moved there. */
    const char *memory, *device;
    bool host_stays; /* with a kind other than host: only tensors on devices are moved there; tensors in host memory stay */
    /* Fetch the metadata, dtypes and shapes of the objects, and no bytes: every tensor's data is NULL, and the fetched
     * object holds nothing. For choosing targets; slices and targets must be NULL. */
    bool metadata_only;
    bool unused[6]; /* programs that were built with an earlier rdt.h may have anything here */
    /* rdt_fetch alone: verifies each object as rdt_verify does, before it returns; one whose bytes are wrong fails the call
     * with DAMAGED. INVALID with slices or metadata_only, and for rdt_fetch_start: call rdt_verify there. */
    bool verify;
};

/* Starts to fetch refs [count] and returns. requests_p [count] receives a request for each, which the caller destroys. A
 * fetch of an id waits until somebody puts it; a fetch of a name waits until it has a version above `after`, and may skip
 * versions in between. Equal refs with equal slices and without targets share one transfer. count may be 0. A version that was
 * published in parts comes as its manifest, an object without tensors: see rdt_object_is_manifest (rdt_plan.h). */
enum rdt_status rdt_fetch_start(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                                rdt_request **requests_p, struct rdt_error *err);

/* Fetches refs [count] and waits for all. objects_p [count] receives the objects, which the caller releases. If one fails,
 * the others are cancelled and the call fails with its error. More than 8 objects of one node, without targets, slices and a
 * path of their own, come hundreds in an answer: this, and rdt_fetch_each, costs a fraction of a fetch for each. Those of one
 * answer have one transfer. Of another node these are objects of up to 32 KiB whose bytes put copied (rdt_put_many, and rdt_put
 * of ordinary memory); a node that does not answer takes at most half of the time, and the rest is for the fetch of each. */
enum rdt_status rdt_fetch(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                          rdt_object **objects_p, struct rdt_error *err);

/* ---- requests ---- */

#define RDT_WAIT_ALL ((size_t)-1)

/* Waits until how_many of requests [count] (RDT_WAIT_ALL: all of them) have ended, one has failed, or timeout_ns has passed.
 * done_p [count], may be NULL, receives which requests have ended, and *n_done_p, may be NULL, how many. Returns RDT_OK if
 * how_many have succeeded. If a request fails, returns its status and sentence at once. Returns TIMED_OUT if too few have
 * ended in time; nothing is cancelled. */
enum rdt_status rdt_wait(rdt *rdt, rdt_request *const *requests, size_t count, size_t how_many, int64_t timeout_ns,
                         bool *done_p, size_t *n_done_p, struct rdt_error *err);

/* Returns how the request ended, or AGAIN while it runs. Never blocks, and does not read the socket: rdt_dispatch does. */
enum rdt_status rdt_request_status(const rdt_request *request, struct rdt_error *err);

/* Gives the caller the object of a fetch that succeeded; this works once for each request. Errors: AGAIN (the request has not
 * ended), INVALID (not a fetch, or the object was taken before), or the error with which the fetch failed. */
enum rdt_status rdt_request_take_object(rdt_request *request, rdt_object **object_p, struct rdt_error *err);

/* Ends the request with CANCELLED at once, unless it has ended. A hold that was taken is released, and its status is
 * CANCELLED from then on. The daemon releases the memory of a fetch when no transport touches it any more; other transfers of
 * the same object continue. */
void rdt_cancel(rdt_request *request);

/* Frees the request: cancels it if it still runs, and releases its hold, or its object if that was not taken. request may be
 * NULL. */
void rdt_request_destroy(rdt_request *request);

/* Returns an fd that is readable when rdt_dispatch has something to do: for poll, epoll, libuv, asyncio. It belongs to the
 * connection. Returns -1 if rdt is NULL or belongs to another process. */
int rdt_fd(const rdt *rdt);

/* Does all work that does not block: reads answers, and ends requests whose time-out has passed. *n_ended_p, may be NULL,
 * receives how many requests have ended since the last rdt_dispatch, including those of rdt_fetch and rdt_wait: a hint to
 * call rdt_request_status. rdt_fd is then no longer readable because of them, so the caller tells all who wait for it. */
enum rdt_status rdt_dispatch(rdt *rdt, size_t *n_ended_p, struct rdt_error *err);

/* ---- fetched objects ---- */

size_t rdt_object_count(const rdt_object *object);

/* Describes tensor i in *tensor_p. Its shape, strides (NULL only if ndim is 0) and data are borrowed from the object, until
 * rdt_release. */
enum rdt_status rdt_object_tensor(const rdt_object *object, size_t i, struct rdt_tensor *tensor_p, struct rdt_error *err);

const void *rdt_object_metadata(const rdt_object *object, size_t *bytes_p); /* NULL with 0 bytes if there is none */

/* Describes in *shard_p the larger tensor of which tensor i is a box. The pointers are borrowed from the object. key is NULL
 * if the tensor is not part of a larger one, as after every fetch with slices; the other pointers are never NULL. Errors:
 * INVALID. */
enum rdt_status rdt_object_shard(const rdt_object *object, size_t i, struct rdt_shard *shard_p, struct rdt_error *err);

struct rdt_object_info {
    struct rdt_ref ref; /* with the object's generation */
    char path[32];      /* "local/same", "local/share", "local/cow", "local/copy", "inline", or the transport's name */
    uint64_t transfer;  /* the number for rdtctl explain; 0 if no daemon was asked and nothing moved */
    uint64_t bytes_moved;
    int64_t elapsed_ns;  /* time spent in the daemon */
    bool writable;       /* false: writing to the tensors is a fault, or on a device changes what all others read */
    bool mutable_shared; /* its producer may still write what is read here; true in one fetch of each such object only */
    uint64_t version;    /* of the name, if the ref was a name: the next fetch takes it as `after` */
};

/* Returns the kind of memory in which tensor i lies ("host") and the uuid of its device ("" for host memory). Both are
 * borrowed from the object. */
enum rdt_status rdt_object_place(const rdt_object *object, size_t i, const char **memory_p, const char **device_p,
                                 struct rdt_error *err);

void rdt_object_info(const rdt_object *object, struct rdt_object_info *info_p);

/* Compares the bytes that this process got, in shared memory, a copy or its own targets, and the metadata with the checksum
 * of the object: the publisher's, if it was put with RDT_PUT_SUM; for a snapshot without one its daemon computes it now.
 * Reads all bytes in this thread. After a write to the tensors they differ, of course. Errors: DAMAGED (the bytes are
 * others), INVALID (the fetch was of slices or metadata), UNSUPPORTED (the object may change, or its memory is its client's,
 * and it was put without RDT_PUT_SUM; the tensors lie on a device; or the object's node is of a version that computes no
 * checksums), FREED, TIMED_OUT, PEER_LOST, NO_MEMORY. */
enum rdt_status rdt_verify(const rdt_object *object, int64_t timeout_ns, struct rdt_error *err);

/* The same for a copy of the object's tensors, wherever the caller has made it, such as in the memory of an engine: tensors
 * [count] have the dtypes and shapes of the object's, in host memory, and any strides. Errors also: MISMATCH (other
 * tensors). */
enum rdt_status rdt_verify_copy(const rdt_object *object, const struct rdt_tensor *tensors, size_t count, int64_t timeout_ns,
                                struct rdt_error *err);

/* Whether code that the object contains, such as a pickle of Python, may run here although it came from another node: the
 * option trusted_pickles of this node's daemon lists every node through which it came. The owner in its ref is that node's
 * word, too. false for objects of this node, which need no such trust: info.ref.node is the daemon's word. */
bool rdt_object_pickles_trusted(const rdt_object *object);

/* Ends a fetch: drops its hold. The memory is unmapped, or cached for a later fetch of this process, until the process has no
 * address space or mappings left for another one: the caller must not touch it any more. object may be NULL. */
void rdt_release(rdt_object *object);

/* Between rdt_cork and rdt_uncork, the messages of rdt_release, rdt_drop, rdt_cancel and rdt_request_destroy are collected
 * and sent together: a message that is sent alone wakes the daemon, which takes longer than the message itself. They are sent
 * with the next call, from any thread, that asks the daemon for something, waits, dispatches or closes, and whenever 64 have
 * gathered; releases of up to 256 objects are one of them. Until then the daemon keeps what was released, so uncork soon. Corks
 * nest. rdt may be NULL. */
void rdt_cork(rdt *rdt);
void rdt_uncork(rdt *rdt);

/* ---- published names ----
 * A name stands for the newest version of something, such as the weights of a model. The producer puts an object (best as a
 * snapshot), publishes it under the name, and frees its own hold; readers fetch the name and wait for the next version. The
 * name lives on the node of the object, in the name space of the object's owner. It holds the newest version only: an older
 * one ends when its last reader releases it. The name exists until rdt_unpublish, unless its last publish gave it a lease or a
 * time to live.
 */

struct rdt_publish_options {
    size_t struct_size;
    enum rdt_visibility visibility; /* who may fetch by the name: not wider than the object's, and the same in each publish of
                                     * a name */
    struct rdt_ref *name_ref; /* NULL, or receives a ref of the name that is valid on every node and for every user, and means
                               * any version (`after` is 0) */
    bool lease;               /* the name ends with this session, and waits for a later version fail with OWNER_DIED */
    int64_t ttl_ns;           /* the name ends when nothing has been published under it for that long, and waits for a later
                               * version fail with FREED; 0: never */
};

/* Makes the object the next version of the name. *version_p, may be NULL, receives its number: one more than the name's last.
 * A new name begins with 1, or above the versions of earlier names, so none is given twice while the daemon or its keeper
 * runs. Fetches that wait for the version continue. The name holds the object, even after this session has ended. An object
 * whose bytes are still being written (RDT_PUT_PENDING, or rdt_cuda_put with a stream) becomes a version when they are there:
 * the call waits for that, at most 50 s, or 5 s if the object is on another node, and fails as the put does. Errors: INVALID
 * (a name of 0 or more than RDT_ID_MAX_BYTES bytes; the visibility; a negative ttl_ns), NOT_FOUND, FREED, OWNER_DIED, DENIED
 * (another owner's object), EXISTS (the name is published on another node of the node table, which the sentence names;
 * rdt-network(7), DIRECTORY), LIMIT (owner_max_names; too many requests wait), TIMED_OUT (the bytes are still being written),
 * UNSUPPORTED (a lease for an object of another node), PEER_LOST. */
enum rdt_status rdt_publish(rdt *rdt, const char *name, const struct rdt_ref *object, const struct rdt_publish_options *options,
                            uint64_t *version_p, struct rdt_error *err);

/* Removes the name and releases its object. name is a ref from rdt_ref_from_name or rdt_publish; its `after` is ignored.
 * Fetches and waits with an `after` above 0 fail with FREED, now and later; with 0 they wait until somebody publishes the
 * name again. Errors: NOT_FOUND, DENIED, INVALID (the ref of an object), PEER_LOST. */
enum rdt_status rdt_unpublish(rdt *rdt, const struct rdt_ref *name, struct rdt_error *err);

/* Makes *ref, which came from rdt_ref_from_name or rdt_ref_from_id, refer to the name or object of another user. user: a
 * login name, or a uid in decimal. The tenant is the ref's, or this session's if the ref gives no owner. Errors: INVALID (no
 * such user). */
enum rdt_status rdt_ref_set_owner(const rdt *rdt, struct rdt_ref *ref, const char *user, struct rdt_error *err);

/* ---- waiting ---- */

/* Waits until the object is put, or the name has a version above `after` (FREED if the name was unpublished). */
enum rdt_status rdt_wait_put(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err);

/* Waits until no hold and no transfer of the object is left on any node: then its memory may be written again. The producer's
 * own hold counts, so free the object first; every rdt_hold counts, too. Replicas on other nodes do not count. Returns RDT_OK
 * if the object has already ended. TIMED_OUT: the sentence names the first holders by client name and process id, or by node,
 * as far as this session may see them (rdt_holders of rdt_info.h). */
enum rdt_status rdt_wait_freed(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err);

/* Waits as rdt_wait_freed does, for every object that overlaps [addr, addr + bytes) of memory of rdt_alloc, rdt_import or
 * rdt_import_shared. TIMED_OUT: the sentence names one such object and its holders. */
enum rdt_status rdt_wait_freed_range(rdt *rdt, const void *addr, size_t bytes, int64_t timeout_ns, struct rdt_error *err);

/* Start the three waits above and return: for event loops, and for waiting together with fetches (rdt_wait). timeout_ns
 * limits the request. The caller destroys *request_p. If the condition already holds, the request ends when the answer is
 * read. Errors also: INVALID (a range of 0 bytes). */
enum rdt_status rdt_wait_put_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                   struct rdt_error *err);
enum rdt_status rdt_wait_freed_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                     struct rdt_error *err);
enum rdt_status rdt_wait_freed_range_start(rdt *rdt, const void *addr, size_t bytes, int64_t timeout_ns,
                                           rdt_request **request_p, struct rdt_error *err);

/* ---- events ----
 * Changes of the daemon's tables as they happen, as rdtctl watch prints them. A session sees what belongs to its owner, what is
 * visible to it, and all nodes; root sees everything. A session that reads too slowly loses events, is told how many, and
 * delays nobody.
 */
enum rdt_kind {                       /* flags; the comments list what rdt_event.what may be */
                RDT_KIND_OBJECTS = 1, /* awaited, filling, put, freed, detached (its client has ended), draining, gone */
                RDT_KIND_REGIONS =
                    2, /* new, sealed (it has become a snapshot), kept (it has become a replica), gone; cached ones too */
                RDT_KIND_CLIENTS = 4, /* connected, gone */
                /* new, connecting, up, down, unreachable, idle (the back-off is over), renamed, gone (it turned out to be a
                 * peer that was known already) */
                RDT_KIND_PEERS = 8,
                RDT_KIND_BACKENDS = 16,  /* loaded, unavailable (it is about to be unloaded), unloaded */
                RDT_KIND_TRANSFERS = 32, /* began, ended */
                RDT_KIND_NAMES = 64,     /* published, freed (its newest version, by force), unpublished */
                RDT_KIND_OWNERS = 128,   /* new (an owner who had nothing on this node), gone (nothing of the owner is left) */
                RDT_KIND_GROUPS = 256,   /* forming, ready, broken, down, ending, gone */
};

/* Watches these kinds from now on, instead of those watched before; 0: none. Things that exist already are not reported:
 * watch first, then list. UNSUPPORTED: the daemon does not report one of the kinds. */
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

/* Takes the next event, in the order in which they happened. rdt_fd is readable while there is one; in an event loop, call
 * this with timeout_ns 0 until it returns TIMED_OUT. Errors: TIMED_OUT (there was no event), INVALID (nothing is watched),
 * DISCONNECTED. */
enum rdt_status rdt_next_event(rdt *rdt, int64_t timeout_ns, struct rdt_event *event_p, struct rdt_error *err);

/* ---- backends: for root and the daemon's own user ---- */

/* Loads the plug-in at `path` into the running daemon, which offers it to every node at once and keeps it until the daemon
 * ends. settings, may be NULL, are "KEY=VALUE" strings for the plug-in's section of the configuration, ended by NULL. Only
 * root and the daemon's user may be able to write the file and every folder on its path. timeout_ns limits the wait; after
 * TIMED_OUT the loading continues. Errors: DENIED (the caller, or the file), NOT_FOUND (no such file), INVALID (not a
 * plug-in, an operation is missing, an unknown key), UNSUPPORTED (another ABI version, or not available here; the sentence
 * says why), EXISTS (the name is taken), BUSY (another change is under way), TIMED_OUT, and the error of the plug-in's open. */
enum rdt_status rdt_backend_load(rdt *rdt, const char *path, const char *const *settings, int64_t timeout_ns,
                                 struct rdt_error *err);

/* Unloads a plug-in, which is named by its own name, its transport's or its memory kind's. Its connections to other nodes end
 * first. Errors: BUSY (it is in use, the sentence says by whom; or another change is under way), NOT_FOUND, INVALID (host
 * memory), DENIED, TIMED_OUT (the unloading continues). */
enum rdt_status rdt_backend_unload(rdt *rdt, const char *name, int64_t timeout_ns, struct rdt_error *err);

/* ---- one object ---- */

struct rdt_stat {
    struct rdt_ref ref;
    char state[16]; /* "awaited", "filling", "live", "draining" */
    uint64_t bytes; /* of all tensors */
    size_t tensors, metadata_bytes;
    uint32_t holds, pins, waiters;
    int64_t age_ns;
    bool snapshot, detached;
    int64_t ttl_left_ns; /* of a detached object; -1: no end is set */
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
