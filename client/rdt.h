/* librdt: put, fetch, wait for and free tensors through the rdtd of this node.
 *
 *     rdt_connect(NULL, &c, &err);
 *     rdt_put(c, &tensor, 1, NULL, &ref, &err);            ...   rdt_fetch(c, &ref, 1, NULL, &object, &err);
 *
 * Bytes never travel over the socket: memory is shared by file descriptor on one node and moved daemon to daemon between
 * nodes.
 *
 * Conventions
 * - Every function that can fail returns enum rdt_status (0 is RDT_OK) and fills err, which may be NULL, with one sentence.
 *   Results (..._p) are written only on success.
 * - A time-out, timeout_ns, is in nanoseconds from the call on. It means the same everywhere:
 *
 *       timeout_ns      as a parameter                          as a member of an options struct
 *       0               does not wait: answers what is so now   the default, which the member's comment says
 *       positive        waits so long, then TIMED_OUT           the same
 *       negative        waits without end (RDT_FOREVER)         the same
 *
 *   The daemon ends a request when its time is over, and says what was missing. If the daemon is stopped, the call ends
 *   without it, at most 50 ms later (200 ms with 0). A call that takes no time-out ends within a minute (TIMED_OUT).
 * - Thread-safe: any call may be made from any thread on one connection, except that a request, an object or a memory range
 *   must not be destroyed while another thread still uses it. No thread is started; callers that wait drive the socket.
 * - After a fork the child's copy of a connection, and of everything made from it, answers RDT_FORKED; the child may unmap by
 *   rdt_close, connects anew, and never disturbs the parent. What the parent releases or gives back is let go of for the child
 *   too: its bytes may change or go. Anything else is the child's to look at, even when the parent has ended.
 * - Options structs begin with struct_size: set it by RDT_INIT, e.g. struct rdt_put_options o = RDT_INIT(o).
 * - Any call on a lost connection answers RDT_DISCONNECTED. Memory that is mapped stays mapped until it is released.
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

typedef struct rdt rdt;                 /* a connection: one session at the daemon; the lease of everything it holds */
typedef struct rdt_request rdt_request; /* something started and not yet collected */
typedef struct rdt_object rdt_object;   /* what a fetch brought: tensors, metadata, a hold */

/* ---- connection ---- */

struct rdt_connect_options {
    size_t struct_size;
    const char *socket; /* NULL: $RDT_SOCKET, else /run/rdtd/rdtd.sock */
    const char *name;   /* shown by rdtctl; NULL: the program's name */
    int64_t timeout_ns; /* 0: 10 s; negative: without end */
};

/* Connects and says hello. Errors: SYSTEM (no socket there; who to ask is in the sentence), DENIED, LIMIT (too many clients),
 * PROTOCOL (no common version), TIMED_OUT. */
enum rdt_status rdt_connect(const struct rdt_connect_options *options, rdt **rdt_p, struct rdt_error *err);

/* Ends the session: cancels its requests, unmaps all memory that came from it, drops its holds; objects it put without DETACHED
 * are freed. Every request, object and pointer made from it is invalid afterwards. NULL is fine. */
void rdt_close(rdt *rdt);

struct rdt_node_info {
    uint8_t node[16], boot_id[16];
    char address[65]; /* of the peer link, "" if there is none */
    char daemon_version[32];
    uint64_t session; /* this session's id, as rdtctl shows it */
    uint32_t uid;     /* owner this session acts as */
    char tenant[33];
};
enum rdt_status rdt_node(rdt *rdt, struct rdt_node_info *info_p, struct rdt_error *err);

/* One round trip to the daemon. */
enum rdt_status rdt_ping(rdt *rdt, int64_t timeout_ns, struct rdt_error *err);

/* ---- memory ----
 * Three ways for a tensor's bytes to be known to the daemon; rdt_put finds out by the pointer and says which it was:
 *   DAEMON    memory from rdt_alloc: no copy
 *   IMPORTED  the caller's own memfd, offered by rdt_import: no copy; readers of other owners get copies
 *   COPIED    anything else: copied once into daemon memory during rdt_put; later writes are not seen. If that is all of the object
 *             and no more than the daemon's inline_max (32 KiB), its bytes travel in the messages: one round trip, no memory to
 *             map; every reader gets a copy, and RDT_FETCH_SHARE is answered NO_PATH. Of a snapshot what is more than that, and no more
 *             than the daemon's sealed_max (4 MiB), goes into a memfd that this process makes and hands over: one round trip, too. Its
 *             pages are the daemon's then, counted under its limits, and charged by the system to this process's control group
 */
enum rdt_memory { RDT_MEMORY_DAEMON = 1, RDT_MEMORY_IMPORTED = 2, RDT_MEMORY_COPIED = 3 };

/* Zeroed host memory of the daemon's, mapped writable, page-aligned, reserved. What is put from it stays alive with the object
 * after rdt_dealloc. Errors: NO_MEMORY, LIMIT, INVALID (0 bytes). */
enum rdt_status rdt_alloc(rdt *rdt, size_t bytes, void **addr_p, struct rdt_error *err);

struct rdt_alloc_options {
    size_t struct_size;
    int64_t timeout_ns; /* how long it may wait for room under a limit or memory_limit; 0: not at all; negative: without end */
    const char *memory; /* kind; NULL: "host". Any other needs its mapper (rdt_map_by); *addr_p is an address of the device then */
    const char *device; /* uuid of the device; NULL: the only one there is */
    int64_t call_timeout_ns; /* of the whole call, whatever it waits for; 0: five minutes more than timeout_ns; negative: without end */
};

/* The same with options. TIMED_OUT: there was no room in time; the sentence says what it waited for. What could never fit is refused
 * at once. Who waits holds nothing, and comes in turn: later requests of the same user do not overtake it. */
enum rdt_status rdt_alloc_with(rdt *rdt, size_t bytes, const struct rdt_alloc_options *options, void **addr_p,
                               struct rdt_error *err);

/* Gives back what rdt_alloc or rdt_import gave. Memory of rdt_alloc is unmapped, or kept for what this process allocates or fetches
 * next: nothing may be read or written there any more. An import is forgotten: the caller's mapping stays the caller's. Objects put
 * from it live on. INVALID: addr is not the start of such a range. */
enum rdt_status rdt_dealloc(rdt *rdt, void *addr, struct rdt_error *err);

/* The same, and waits for nothing: memory of rdt_alloc is unmapped when the daemon has heard of it, and kept for nobody. For threads that
 * must not wait for a daemon that may be stopped. */
enum rdt_status rdt_dealloc_soon(rdt *rdt, void *addr, struct rdt_error *err);

/* Offers a memfd that the caller has mapped at addr (bytes from offset 0 of the fd, shared mapping). The fd stays the caller's
 * and may be closed. INVALID: not a memfd, shorter than bytes, or not sealed against shrinking: fcntl(fd, F_ADD_SEALS,
 * F_SEAL_SHRINK). It may lack pages that nobody has touched yet: those that the daemon makes later, because it copies from or to there,
 * count as this client's memory, and LIMIT or NO_MEMORY of who wanted the bytes says so before there is one. */
enum rdt_status rdt_import(rdt *rdt, int fd, void *addr, size_t bytes, struct rdt_error *err);

/* ---- memory on devices ----
 * librdt touches no device and links no vendor's library: it names memory. A library for the kind (librdt-cuda) maps it. Once its mapper is
 * known, rdt_alloc_with gives device memory, rdt_import_shared offers the caller's own, tensors in either are put and are targets of
 * fetches like any others (data is the device's address), and fetches bring such tensors. Device memory that the daemon does not know
 * must not be given to rdt_put or as a target: librdt takes what it does not know for host memory.
 * A handle is given only to processes of the memory's own uid and tenant; who else may fetch the object gets a copy.
 */

enum rdt_shared_kind { RDT_SHARED_MEMFD = 0, RDT_SHARED_VMM = 1, RDT_SHARED_LEGACY_IPC = 2 };

/* A range of memory, by what another process maps it by. */
struct rdt_shared {
    size_t struct_size;
    const char *memory; /* kind: "cuda" */
    const char *device; /* uuid */
    enum rdt_shared_kind kind;
    uint64_t bytes;
    uint64_t offset;             /* of the range in what the fds, or the handle, name together */
    const int *fds;              /* [n_fds], VMM: one for each chunk, in order; borrowed */
    const uint64_t *chunk_bytes; /* [n_fds] */
    size_t n_fds;
    const void *handle; /* LEGACY_IPC: of the whole allocation */
    size_t handle_bytes;
    int64_t timeout_ns; /* of rdt_import_shared; 0: five minutes; negative: without end */
};

struct rdt_mapper {
    size_t struct_size;
    const char *memory; /* the kind it is for */
    /* *addr_p: where this process sees the first byte, to read and write. Any thread that waits on the connection, under its lock: it
     * calls nothing of librdt and waits for no work of the caller's on the device. *mapping_p is handed back to unmap. */
    enum rdt_status (*map)(void *arg, const struct rdt_shared *shared, void **addr_p, void **mapping_p, struct rdt_error *err);
    /* Nothing uses it any more. Any thread; it calls nothing of librdt. Once for each map. */
    void (*unmap)(void *arg, void *addr, void *mapping);
    void *arg;
};

/* From now on memory of that kind is mapped by this; until the connection's end. Copied, but for arg. EXISTS: the kind has one. */
enum rdt_status rdt_map_by(rdt *rdt, const struct rdt_mapper *mapper, struct rdt_error *err);

/* Offers memory that the caller has at addr, by what the daemon can map it by: as rdt_import, and ended by rdt_dealloc. The fds stay the
 * caller's and may be closed; the memory must stay until it is given back and no object or transfer uses it (rdt_wait_freed_range), or
 * the daemon reads what is no longer there. Any number of chunks. Errors: UNSUPPORTED (no such kind or device at the daemon), INVALID,
 * LIMIT, SYSTEM (the device refused it, and why). */
enum rdt_status rdt_import_shared(rdt *rdt, const struct rdt_shared *shared, void *addr, struct rdt_error *err);

/* What the daemon knows at addr: the range (of rdt_alloc, rdt_import or rdt_import_shared) that holds all of [addr, addr + bytes). *known_p
 * false: it knows none of it. INVALID: only a part. memory, device: of the range, valid while it is; each may be NULL. */
enum rdt_status rdt_known(rdt *rdt, const void *addr, size_t bytes, bool *known_p, const char **memory_p, const char **device_p,
                          struct rdt_error *err);

struct rdt_device_info {
    char memory[33], uuid[65], name[96];
    uint64_t bytes;      /* of the device */
    uint64_t used_bytes; /* that the daemon has allocated there */
    uint64_t limit_bytes; /* of used_bytes; 0: none */
    bool opened;         /* the daemon uses it */
    uint64_t overhead_bytes; /* what that costs there beside used_bytes; UINT64_MAX: it cannot be told */
    char why_not[128];   /* "": it can be used */
};
/* The daemon's devices: at most max in devices_p; *count_p: how many there are. */
enum rdt_status rdt_devices(rdt *rdt, struct rdt_device_info *devices_p, size_t max, size_t *count_p, struct rdt_error *err);

/* ---- tensors ---- */

struct rdt_tensor {
    enum rdt_dtype dtype;
    uint32_t ndim;          /* 0..32; 0 is a scalar of one element */
    const int64_t *shape;   /* [ndim] elements, each >= 0 */
    const int64_t *strides; /* [ndim] elements, may be negative or 0; NULL: row-major contiguous */
    void *data;             /* address of element [0, 0, ...]; may be NULL if there are no elements */
};

/* Bytes of all elements, row-major contiguous. 0 if a dimension is 0. RDT_INVALID: bad dtype, ndim or shape, or overflow. */
enum rdt_status rdt_tensor_bytes(const struct rdt_tensor *tensor, size_t *bytes_p, struct rdt_error *err);

/* ---- put ---- */

enum rdt_visibility { RDT_VISIBLE_TO_OWNER = 0, RDT_VISIBLE_TO_TENANT = 1, RDT_VISIBLE_TO_ALL = 2 };

struct rdt_put_options {
    size_t struct_size;
    const void *id;       /* the caller's name for it, among those of its uid and tenant; NULL: generated */
    size_t id_bytes;      /* 1..128 */
    const void *metadata; /* opaque, handed to every reader; at most 4 MiB */
    size_t metadata_bytes;
    enum rdt_visibility visibility; /* who else may fetch; default: this uid (and tenant) only */
    const char *transport;          /* preferred between nodes; NULL: the daemon chooses */
    uint32_t flags;                 /* enum rdt_put_flags; one that this version does not serve is UNSUPPORTED */
    int64_t timeout_ns;             /* of the synchronous call; where a limit is reached it waits so long for room; 0: without
                                     * end, and it waits for no room */
    enum rdt_memory *how;           /* NULL, or [count]: receives how each tensor's memory was taken */
    int64_t ttl_ns;                 /* of RDT_PUT_DETACHED; 0: the daemon's detached_ttl; LIMIT above its detached_ttl_max */
};

/* Makes an object of the tensors, in one round trip (two if bytes had to be copied into the daemon's memory, and none is left from an earlier
 * such put: librdt lends it to the object, and has it again when that has ended). The object refers to the memory: it is live, and what is
 * written there later is seen by readers; put nothing over it before rdt_wait_freed. What was copied nobody writes. Tensors may overlap,
 * repeat, be empty; count 0 is allowed. Tensors are borrowed during the call. The object lives until it is freed or this session ends. With
 * SNAPSHOT the call returns when the copy is whole; TIMED_OUT: there is no object.
 * Errors: INVALID (names the tensor), EXISTS (id), LIMIT, NO_MEMORY, UNSUPPORTED (transport unknown; lists those loaded; or it does not
 * move such memory). */
enum rdt_status rdt_put(rdt *rdt, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                        struct rdt_ref *ref_p, struct rdt_error *err);

/* Of an object put as PENDING: its bytes are there now; it is live (or, of a snapshot, is copied and then live), and those who wait get it.
 * Waits for no answer. Any thread; not for a callback in which the device's driver allows no blocking: it takes the connection's
 * lock, under which others may map memory. Errors: INVALID, DISCONNECTED, FORKED; if the object is not pending (freed meanwhile) nothing
 * happens. */
enum rdt_status rdt_ready(rdt *rdt, const struct rdt_ref *ref, struct rdt_error *err);

/* Of the same: its bytes will not come. Those who wait get `why` (RDT_OWNER_DIED where it is RDT_OK) with the sentence, and the id is free. */
enum rdt_status rdt_fail(rdt *rdt, const struct rdt_ref *ref, enum rdt_status why, const char *sentence, struct rdt_error *err);

/* Drops the producer's hold: the object goes when its last reader, and whoever holds it by rdt_hold, has let go. With force nobody fetches it any more (FREED), on no
 * node, from the moment that this returns: it waits for the nodes that keep a copy (of a snapshot), at most the daemon's peer_timeout
 * for one that does not answer and then serves no copy either. Readers that hold it keep it. Errors: NOT_FOUND,
 * FREED, DENIED, PEER_LOST. */
enum rdt_status rdt_free(rdt *rdt, const struct rdt_ref *ref, bool force, struct rdt_error *err);

/* rdt_free without its answer: nobody is told how it went. For destructors and collectors of garbage. It blocks only while the socket is
 * full, as rdt_release, rdt_cancel and rdt_request_destroy do: half a second at most, and where the daemon has not read by then, the
 * message goes with the next call, and further ones do not wait. Errors: INVALID, FORKED, DISCONNECTED. */
enum rdt_status rdt_drop(rdt *rdt, const struct rdt_ref *ref, struct rdt_error *err);

/* ---- holds ----
 * A ref names an object and keeps nothing. Who was handed a ref and will fetch it later, perhaps often, takes a hold: without bringing a byte it
 * keeps the object as a fetch of it would, on its own node or another one, until the holder lets go. Then the producer may free it, close, or
 * be killed: what daemon memory it lies in stays (of RDT_MEMORY_IMPORTED all that was a memfd). rdt_free by force ends the hold too: what
 * is fetched then is FREED.
 *
 * There is no moment between two holders when nobody holds: the one that hands a ref on keeps its own hold until the other says that it has
 * one (rdt_hold has returned), has called rdt_hand_on, or has put the object with RDT_PUT_DETACHED and a ttl_ns that is longer than
 * the way.
 *
 * A hold on another node's object is that node's daemon's, for this session: it survives the link between them for the owner's hold_grace, and
 * this session's end ends it. The ref is held, not its name: of a published name it is the version that came. Each takes one of client_max_holds.
 */

/* Takes a hold. An id that nobody has put yet, or a name without a version above `after`, is waited for. *hold_p is a request that has ended
 * well: what it holds it holds until rdt_request_destroy (or rdt_cancel, or the session's end) lets go, without waiting for anything.
 * Errors: FREED, OWNER_DIED, NOT_FOUND, DENIED (as for a fetch), LIMIT, PEER_LOST, TIMED_OUT. */
enum rdt_status rdt_hold(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p, struct rdt_error *err);

/* The same without waiting for it: it holds from when it has ended well. timeout_ns is its. */
enum rdt_status rdt_hold_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p, struct rdt_error *err);

/* The holder of a ref sends it to another process and may let go before that process has a hold. The daemon holds the object for
 * grace_ns (at most its detached_ttl_max), whatever becomes of this session; a rdt_take_over_start of the receiver ends that hold early.
 * Call it once for each process that the ref is sent to, before the ref is sent. Errors: INVALID (a name, a ref without a generation, a
 * grace_ns of 0), UNSUPPORTED (an object of another node), DENIED (another owner's), NOT_FOUND, FREED, OWNER_DIED, NO_MEMORY. */
enum rdt_status rdt_hand_on(rdt *rdt, const struct rdt_ref *ref, int64_t grace_ns, struct rdt_error *err);

/* rdt_hold_start for a ref that rdt_hand_on announced: when this hold is taken, the one in transit ends. Without one it is
 * rdt_hold_start. */
enum rdt_status rdt_take_over_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p,
                                    struct rdt_error *err);

/* What it holds, with its true generation. AGAIN, INVALID (no hold), or the failure. */
enum rdt_status rdt_hold_ref(const rdt_request *hold, struct rdt_ref *ref_p, struct rdt_error *err);

/* ---- fetch ---- */

enum rdt_fetch_mode {
    RDT_FETCH_AUTO = 0,  /* share on this node, copy from another */
    RDT_FETCH_SHARE = 1, /* this node only, read-only, constant time at any size */
    RDT_FETCH_COPY = 2,  /* private, writable */
    /* Private, writable, in constant time: pages are copied when they are written. Of a snapshot, or what librdt copied for a put without flags
     * that its owner alone may see, which is all of the object; another live object is copied. */
    RDT_FETCH_COW = 3,
};

/* A box of one tensor: [start[d], start[d] + count[d]) in every dimension d. */
struct rdt_slice {
    uint32_t ndim;        /* the tensor's; 0: the whole tensor */
    const int64_t *start; /* [ndim] */
    const int64_t *count; /* [ndim] */
};

struct rdt_fetch_options {
    size_t struct_size;
    enum rdt_fetch_mode mode;
    int64_t timeout_ns;     /* deadline of every request, from its start to its last byte; 0: without end */
    const char *transport;  /* only by this one; NULL: any */
    /* Refuse what is slower: "share", "cow", "copy", "inline" or a transport's name; "direct": whatever goes through host memory between
     * two nodes although it lies, or shall lie, on a device. NULL: any. */
    const char *least_path;
    /* For the i-th ref, if not NULL, slices[i] has one entry per tensor of that object (or is NULL: whole). */
    const struct rdt_slice *const *slices;
    const size_t *slice_counts; /* [refs] entries in slices[i] */
    /* For the i-th ref, if not NULL, targets[i] (or NULL) receives its tensors: contiguous, same count, dtype and shape (after
     * slicing). Checked before anything is written there: MISMATCH names the tensor. They must stay valid until the request
     * ends, also after a cancel or time-out: rdt_request_destroy returns only when nothing writes there any more unless the
     * memory is rdt_alloc's or rdt_import's, where the daemon keeps it safe itself. */
    const struct rdt_tensor *const *targets;
    const size_t *target_counts; /* [refs] */
    const char *group; /* only within this group (see rdt_group_create); NULL: where a path needs a group, the first that both share */
    /* Where the tensors shall be, without targets. NULL: on this node where they lie, if this process can map that (rdt_map_by), else host
     * memory; from another node host memory. "host", or a kind and the uuid of its device (NULL: the only one): moved there. */
    const char *memory, *device;
    bool host_stays; /* with a kind other than host: of a mixed object only what lies on devices goes there */
};

/* Starts fetching all refs before any is awaited, and returns. An id that nobody has put yet parks until it is, a name until it has a
 * version above the one that was read (versions in between may never be seen). Equal refs (with equal slices and no targets) share
 * one transfer. requests_p is [count], each to be destroyed. count 0 is fine. */
enum rdt_status rdt_fetch_start(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                                rdt_request **requests_p, struct rdt_error *err);

/* The synchronous twin: all or the first failure (the rest is cancelled). objects_p is [count], each to be released. */
enum rdt_status rdt_fetch(rdt *rdt, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                          rdt_object **objects_p, struct rdt_error *err);

/* ---- requests ---- */

#define RDT_WAIT_ALL ((size_t)-1)

/* Waits until `how_many` of the requests (RDT_WAIT_ALL: every one) have ended, or one has failed, or the time is over.
 * done_p, if not NULL, is [count] and tells which have ended; *n_done_p, if not NULL, how many.
 * RDT_OK: enough have ended well. A failed one: its status and sentence, at once. RDT_TIMED_OUT: not enough; nothing is
 * cancelled, they go on. */
enum rdt_status rdt_wait(rdt *rdt, rdt_request *const *requests, size_t count, size_t how_many, int64_t timeout_ns,
                         bool *done_p, size_t *n_done_p, struct rdt_error *err);

/* RDT_AGAIN while it runs, else how it ended. Never blocks; does not read the socket (rdt_dispatch does). */
enum rdt_status rdt_request_status(const rdt_request *request, struct rdt_error *err);

/* The object of a fetch that ended well, once: it moves to the caller. AGAIN, INVALID (a wait, or taken), or the failure. */
enum rdt_status rdt_request_take_object(rdt_request *request, rdt_object **object_p, struct rdt_error *err);

/* Releases the caller now: the request ends with CANCELLED unless it ended before (a hold that ended well: it is let go of, and CANCELLED from
 * then on). The daemon releases the memory when nothing touches it any more. Never touches another transfer of the same object. */
void rdt_cancel(rdt_request *request);

/* Cancels if it runs, releases what it brought and nobody took, lets go of what it holds, and frees it. NULL is fine. */
void rdt_request_destroy(rdt_request *request);

/* A fd that is readable when rdt_dispatch has something to do: for poll, epoll, libuv, asyncio. Owned by the connection. */
int rdt_fd(const rdt *rdt);

/* Does what can be done without blocking: reads answers, ends requests whose time is over. *n_ended_p, if not NULL: how many
 * requests ended since the last rdt_dispatch, those of rdt_fetch and rdt_wait included: a hint to look, rdt_request_status
 * says which. */
enum rdt_status rdt_dispatch(rdt *rdt, size_t *n_ended_p, struct rdt_error *err);

/* ---- fetched objects ---- */

size_t rdt_object_count(const rdt_object *object);

/* Borrowed from the object: shape, strides (never NULL unless ndim is 0) and data are valid until rdt_release. */
enum rdt_status rdt_object_tensor(const rdt_object *object, size_t i, struct rdt_tensor *tensor_p, struct rdt_error *err);

const void *rdt_object_metadata(const rdt_object *object, size_t *bytes_p); /* NULL with 0 bytes if there is none */

struct rdt_object_info {
    struct rdt_ref ref; /* with the true generation */
    char path[32];      /* "local/same", "local/share", "local/cow", "local/copy", "inline", or the transport's name */
    uint64_t transfer;  /* for rdtctl explain; 0 when nothing was moved and the daemon was not asked */
    uint64_t bytes_moved;
    int64_t elapsed_ns;  /* in the daemon */
    bool writable;       /* false: writing there is a fault */
    bool mutable_shared; /* said once per object: its producer may still write what you read */
    uint64_t version;    /* of the name, if the ref was one; the next fetch's `after` */
};

/* Where tensor i lies: kind ("host") and the uuid of its device ("" of host memory); borrowed from the object. */
enum rdt_status rdt_object_place(const rdt_object *object, size_t i, const char **memory_p, const char **device_p, struct rdt_error *err);

void rdt_object_info(const rdt_object *object, struct rdt_object_info *info_p);

/* The end of a fetch: drops the hold. Its memory is unmapped, or kept for what this process fetches next (rdt_fetch_start): nothing may be
 * read or written there any more. NULL is fine. */
void rdt_release(rdt_object *object);

/* For who lets go of many things at once. Each message of its own wakes the daemon, which takes longer than the message. So until rdt_uncork what
 * rdt_release, rdt_drop, rdt_cancel and rdt_request_destroy have to say waits for company: it goes with the next call that asks the daemon for
 * something, waits, dispatches or closes, from any thread, and whenever 64 have come together. Until it has gone the daemon holds what was let go
 * of: uncork soon. Corks nest; no answer is waited for. NULL is fine. */
void rdt_cork(rdt *rdt);
void rdt_uncork(rdt *rdt);

/* ---- published names ----
 * For what has a newest version, as weights have: a producer puts (or snapshots) it, publishes it under a name and frees its own hold;
 * readers fetch the name and wait for the next version. The name is on the node where the object is, in the name space of the object's
 * owner. It holds the newest version, and of older ones nothing is left but what readers still hold.
 */

struct rdt_publish_options {
    size_t struct_size;
    enum rdt_visibility
        visibility;           /* who may fetch by the name: the same in each publish of a name, not wider than the object's */
    struct rdt_ref *name_ref; /* NULL, or receives a ref of the name that is good on every node, of any version (after is 0) */
};

/* Makes the object the next version of the name; *version_p, may be NULL, is which: they grow by one, from 1 on, and none is given
 * twice while the daemon runs. Those who wait for it get it. The name holds the object by itself, and stays when this session ends,
 * until rdt_unpublish. Errors: INVALID (a name of 0 or more than 128 bytes; visibility), NOT_FOUND, FREED, OWNER_DIED, DENIED (another
 * owner's object), LIMIT (max_names), PEER_LOST. */
enum rdt_status rdt_publish(rdt *rdt, const char *name, const struct rdt_ref *object, const struct rdt_publish_options *options,
                            uint64_t *version_p, struct rdt_error *err);

/* Ends the name (a ref from rdt_ref_from_name or rdt_publish; its `after` does not matter): it lets go of its object; those who wait for
 * a version get FREED, as do later fetches with an `after`; with after 0 they wait until somebody publishes again. Errors: NOT_FOUND,
 * DENIED, INVALID (an object's ref), PEER_LOST. */
enum rdt_status rdt_unpublish(rdt *rdt, const struct rdt_ref *name, struct rdt_error *err);

/* ---- groups ----
 * Some transports (gloo) move bytes only within a group: an ordered set of actors on several nodes, whose daemons are connected with one
 * another. It belongs to its owner (uid and tenant), not to the session that created it: any member may use it, whoever created it, and
 * it stays until it is destroyed or the daemon that created it ends. An actor may be in several. When a node of it is lost, or the
 * transport fails, it is formed anew by itself under the next epoch; only the transfers in it at the time fail, with TRANSPORT.
 */

struct rdt_member {
    const char *client; /* the name that it gives to rdt_connect */
    const char *node;   /* where it is: "HOST:PORT", a name in the nodes file, or the uuid in hex; NULL: on this node */
    const char *device; /* where its tensors are: the uuid of a device of its node, which the transport moves; NULL: host memory.
                         * A node may have members on several */
};

struct rdt_group_options {
    size_t struct_size;
    int64_t timeout_ns; /* until every member's node is connected; 0: a minute */
};

/* Forms a group of the members, in rank order; all must be connected now, as this owner's. Returns when each of their nodes is ready; on
 * an error there is no group. Errors: EXISTS (the name), NOT_FOUND (a member is not there), UNSUPPORTED (the transport is not loaded, not
 * available, or needs no group), INVALID (fewer than two members, or one twice), PEER_LOST, TRANSPORT, TIMED_OUT, LIMIT. */
enum rdt_status rdt_group_create(rdt *rdt, const char *name, const char *transport, const struct rdt_member *members, size_t count,
                                 const struct rdt_group_options *options, struct rdt_error *err);

/* Ends it, for all its members; transfers in it fail with TRANSPORT. Returns when no node that can be reached has it any more. NOT_FOUND:
 * this node knows no such group of this owner. */
enum rdt_status rdt_group_destroy(rdt *rdt, const char *name, struct rdt_error *err);

/* Gives a copy of a snapshot to every other node of the group: the nodes keep it, and fetches of the ref by clients there are served by it at
 * once, whoever may fetch it, until the object ends or its memory is wanted for something else (the daemon's replicas_max). For the object's
 * owner (uid and tenant), on the node where the object is, which must be one of the group's; the bytes go by the group's transport, its own
 * broadcast where it has one. Returns when every copy is whole; nodes that have one already get no bytes. The first failure is the answer,
 * and names the node; nodes that have their copy by then keep it. An object of 0 bytes needs no copy.
 * Errors: INVALID (the object is live: put it with RDT_PUT_SNAPSHOT), UNSUPPORTED (it is another node's; memory that the transport does not
 * read), NOT_FOUND (the object, or the group on this node), DENIED (another owner's), FREED, NO_PATH (the group is down), PEER_LOST (a
 * node of it), TRANSPORT (the group was taken down), LIMIT and NO_MEMORY (of this node, or of the one that is named), TIMED_OUT: what moves
 * at that moment comes to its end, or is taken back. */
enum rdt_status rdt_broadcast(rdt *rdt, const struct rdt_ref *ref, const char *group, int64_t timeout_ns, struct rdt_error *err);

/* The same as a request; timeout_ns is its. *request_p is to be destroyed; rdt_cancel lets go of it as a time-out does. */
enum rdt_status rdt_broadcast_start(rdt *rdt, const struct rdt_ref *ref, const char *group, int64_t timeout_ns,
                                    rdt_request **request_p, struct rdt_error *err);

struct rdt_group {
    char name[65], transport[65];
    char state[16]; /* "forming", "ready", "rebuilding", "down", "ending" */
    char why[256];  /* it is not ready */
    uint32_t epoch; /* grows each time it is formed anew */
    uint32_t members, ranks;
};

/* This owner's groups that this node is in, or has created: at most max of them in groups_p; *count_p: how many there are. */
enum rdt_status rdt_group_list(rdt *rdt, struct rdt_group *groups_p, size_t max, size_t *count_p, struct rdt_error *err);

/* ---- waiting ---- */

/* Until the object is put, or the name has a version above `after` (FREED if it was and is no more). */
enum rdt_status rdt_wait_put(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err);

/* Until no hold and no transfer of the object is left on any node: its memory may be written again. The producer's own hold
 * counts: free first; so does whoever took one by rdt_hold, on any node. What readers on other nodes have received is memory of their own, and is not waited for. An object that is
 * already gone is RDT_OK. */
enum rdt_status rdt_wait_freed(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err);

/* The same for every object that overlaps [addr, addr + bytes) of rdt_alloc's or rdt_import's memory. */
enum rdt_status rdt_wait_freed_range(rdt *rdt, const void *addr, size_t bytes, int64_t timeout_ns, struct rdt_error *err);

/* The three as requests, for event loops and for waiting beside fetches (rdt_wait); timeout_ns is theirs. *request_p is to be destroyed. What
 * is already so ends at once, as every request does, when the answer is read. INVALID also: a range of 0 bytes. */
enum rdt_status rdt_wait_put_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                   struct rdt_error *err);
enum rdt_status rdt_wait_freed_start(rdt *rdt, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                     struct rdt_error *err);
enum rdt_status rdt_wait_freed_range_start(rdt *rdt, const void *addr, size_t bytes, int64_t timeout_ns, rdt_request **request_p,
                                           struct rdt_error *err);

/* ---- events ----
 * What happens in the daemon's tables, as it happens: rdtctl watch for programs. A session sees its own owner's things, what is visible to
 * it, and all nodes; root sees everything. Whoever reads too slowly loses events, is told how many, and holds up nobody.
 */
enum rdt_kind {                          /* a set of them */
                RDT_KIND_OBJECTS = 1,    /* awaited, filling, put, freed, detached (its client has ended), draining, gone */
                RDT_KIND_REGIONS = 2,    /* new, sealed (it is a snapshot now), kept (a copy of another node's, for everybody), gone; warm memory too */
                RDT_KIND_CLIENTS = 4,    /* connected, gone */
                RDT_KIND_PEERS = 8,      /* new, connecting, up, down, unreachable, idle (back-off is over), renamed, gone (it is another that is known) */
                RDT_KIND_BACKENDS = 16,  /* loaded, unavailable (it is about to be unloaded), unloaded */
                RDT_KIND_TRANSFERS = 32, /* began, ended */
                RDT_KIND_NAMES = 64,     /* published, freed (its newest version, by force), unpublished */
                RDT_KIND_OWNERS = 128,   /* new (who has nothing here yet), gone (nothing is left of him) */
                RDT_KIND_GROUPS = 256,   /* forming, ready, broken, down, ending, gone */
};

/* Begins to watch these kinds, 0: none, in place of what was watched before. Events come from now on: what is there already is not told;
 * watch first, then list. UNSUPPORTED: a kind that this daemon does not tell. */
enum rdt_status rdt_watch(rdt *rdt, uint32_t kinds, struct rdt_error *err);

struct rdt_event {
    uint64_t sequence;  /* of this rdt_watch, from 1 on: grows by one with each event, lost ones included */
    uint64_t lost;      /* events right before this one that were lost because nobody took them */
    enum rdt_kind kind; /* 0 with what "lost": nothing else is said */
    char what[16];      /* as above */
    char state[16];     /* of an object, peer, transfer or group; a region's origin; a backend's kind: "memory", "transport" */
    uint64_t id;        /* an object's generation, a region's, client's or transfer's number, a name's version, a group's epoch */
    uint64_t bytes;     /* of an object, region, transfer, or a name's newest version */
    uint32_t uid;       /* with tenant: the owner of what has one */
    char tenant[33];
    char name[400]; /* an object's id or a name, as rdtctl shows it (%XX); of a client, peer, backend or group; a transfer's path */
    struct rdt_ref ref; /* of an object, of what a transfer moves, of a name's newest version; id_bytes 0: none */
};

/* The next event, in the order in which they happened. rdt_fd is readable while there is one; with timeout_ns 0 this is what to call
 * then, until TIMED_OUT. Errors: TIMED_OUT (none came), INVALID (nothing is watched), DISCONNECTED. */
enum rdt_status rdt_next_event(rdt *rdt, int64_t timeout_ns, struct rdt_event *event_p, struct rdt_error *err);

/* ---- backends: for root and the daemon's own user ---- */

/* Loads the plug-in at `path` into the running daemon, with settings of its own section of the configuration ("KEY=VALUE", NULL at the
 * end; NULL: none); it is offered to every node at once, and gone with the daemon's end. The file, and every folder on its path, may be
 * writable by nobody but root and the daemon's user. timeout_ns bounds the wait; the loading goes on. Errors: DENIED (the caller, or the
 * file), NOT_FOUND (no such file), INVALID (no backend, an operation is missing, a key it does not know), UNSUPPORTED (another ABI
 * version; not available here, and why), EXISTS (a name that is taken), BUSY (another change is under way), TIMED_OUT, and what its own
 * open failed with. */
enum rdt_status rdt_backend_load(rdt *rdt, const char *path, const char *const *settings, int64_t timeout_ns,
                                 struct rdt_error *err);

/* Takes a backend out: by its name, its transport's or its memory kind's. Its connections to other nodes are taken down before. Errors:
 * BUSY (who uses it, or another change is under way), NOT_FOUND, INVALID (host memory), DENIED, TIMED_OUT (it goes on). */
enum rdt_status rdt_backend_unload(rdt *rdt, const char *name, int64_t timeout_ns, struct rdt_error *err);

struct rdt_stat {
    struct rdt_ref ref;
    char state[16]; /* "awaited", "filling", "live", "draining" */
    uint64_t bytes; /* of all tensors */
    size_t tensors, metadata_bytes;
    uint32_t holds, pins, waiters;
    int64_t age_ns;
    bool snapshot, detached;
    int64_t ttl_left_ns; /* of a detached object whose session has ended; -1: there is no end in sight */
};
/* What an object is and what keeps it; of a name: the object of its newest version. Errors: NOT_FOUND (nobody has put it, or
 * waits for it), FREED, DENIED, PEER_LOST. */
enum rdt_status rdt_stat(rdt *rdt, const struct rdt_ref *ref, struct rdt_stat *stat_p, struct rdt_error *err);

#ifdef __cplusplus
}
#endif
#endif
