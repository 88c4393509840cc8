/* The plug-in interface of rdtd: memory kinds and transports. Installed; append-only. Beside it, for who writes a transport:
 * rdt_plugin.h.
 *
 * A backend is one .so that exports
 *
 *     const struct rdt_backend *rdt_backend_init(void);
 *
 * and describes up to one memory kind and one transport by tables of operations. The core reads abi_version and struct_size
 * first, takes the smaller of both sizes of every table, and treats what is missing or NULL as not supported: what a backend
 * can do follows from the operations it has, and is stated nowhere else.
 *
 * Rules for every operation
 * - The core checks bounds, states, permissions and deadlines before it calls; a plug-in may assert them.
 * - Transport operations are called on the core's loop thread and must not block: they queue work for a thread of the plug-in's
 *   own, which reports back by the host table. Memory operations are called on the core's pool threads, several at a time, and may
 *   take as long as their bytes need, but wait for nobody (share, take, and map without warm, also on the loop).
 * - Who shares the machine with a plug-in's work should not wait for it: the daemon's threads, and those that a plug-in starts, have short
 *   slices of the processor (Linux 6.12 and later), and call sched_yield after some tens of microseconds of copying or polling.
 * - A plug-in takes no signals, changes no process-wide state it does not have to, and prints nothing: it logs by the host.
 *
 * Which operation is called when (transport; "conn" is one per peer node and epoch)
 *
 *     load:            rdt_backend_init, open
 *     link comes up:   connection_create, offer  ->  the blob travels to the peer  ->  connect(the peer's blob)
 *     fetch, reader:   register (once per region)   post_recv ...   op_done
 *     fetch, owner:    register (once per region)   post_send ...   op_done
 *     abort:           cancel ...   op_done;  if that does not come within the grace time: disconnect, every op ends, conn_closed
 *     link goes down:  disconnect, every op ends, conn_closed, connection_destroy
 *     free:            unregister
 *     unload:          close
 *
 * A transport that moves bytes within groups only has group_create and no connection_create (since 1.2). "group" is one rank's end of
 * one group in one epoch; a rank is a node and a device:
 *
 *     forming:         group_create, group_offer  ->  the blobs of all ranks travel to all nodes  ->  group_connect, group_ready
 *     fetch:           register, post_send, post_recv, cancel as above, on the conn that group_conn gives for the peer's rank
 *     broadcast:       register, post_broadcast on every rank, on the root last (since 1.3)
 *     failure, abort that does not come to rest, a node lost, the group's end:
 *                      group_close, every op ends, group_closed, group_destroy; then, under the next epoch, forming again
 *
 * A memory kind whose memory lies on devices (since 1.3) has the operation devices, and with it copy_start, export_block and zero. The core
 * never touches such memory itself: block->addr is an address of the device, for the plug-in's copies and for transports that list the
 * kind. Nothing is done with a device, no context made, before something is allocated on or imported from it.
 *
 *     load:            open, devices
 *     ALLOC:           alloc, map (warm)             -> export_block for its owner's processes, in constant time
 *     IMPORT:          import, map (warm)
 *     put, fetch:      copy_start ... copy_done      device to device, device to host, host to device
 *     between nodes:   register by a transport that moves the kind; else, through host memory that was pinned once:
 *                      pin, [copy_start ... copy_done, post_send | post_recv, copy_start ... copy_done], unpin
 *     reuse:           zero, before it shows one owner the bytes of another, or is to be new memory
 *     free:            free
 */
#ifndef RDT_BACKEND_H
#define RDT_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RDT_BACKEND_ABI 1
#define RDT_OFFER_MAX_BYTES 512
#define RDT_KEY_MAX_BYTES 512
#define RDT_GROUP_OFFER_MAX_BYTES 16384
#define RDT_EXPORT_MAX_FDS 4096   /* chunks of one block */
#define RDT_EXPORT_HANDLE_BYTES 64

struct rdt_op;
struct rdt_memory_copy;

enum rdt_log_level { RDT_LOG_ERROR = 0, RDT_LOG_WARN = 1, RDT_LOG_INFO = 2, RDT_LOG_DEBUG = 3, RDT_LOG_TRACE = 4 };

/* ---- what the core offers ---- */

struct rdt_host {
    uint32_t abi_version;
    uint32_t struct_size;
    void *ctx; /* first argument of the functions below that take one */

    /* Any thread. One line, lower case, no newline; the core adds the backend's name. */
    void (*log)(void *ctx, enum rdt_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

    /* Only inside open. The value of a key of the backend's own section of the configuration (as declared in config_keys), or of
     * "trusted_network" ("yes", "no"), "interfaces" (comma-separated, "" is any) and "listen_host" (numeric address of the peer link,
     * "" if there is none), which every transport may ask for. NULL: no such key. Valid until open returns. */
    const char *(*config)(void *ctx, const char *key);

    /* Any thread. Ends an operation: exactly once for each that was posted, never inside the posting call, and only when neither the
     * plug-in nor anything it started touches the op's memory any more. RDT_OK, RDT_CANCELLED, or RDT_TRANSPORT with the vendor's
     * text in msg (copied; may be NULL). The op belongs to the core again as soon as it is called. */
    void (*op_done)(struct rdt_op *op, enum rdt_status status, const char *msg);

    /* Any thread. The connection is of no use any more (the peer is gone, the endpoint failed). At most once per connection; the core
     * then disconnects it. */
    void (*conn_failed)(void *conn_ctx, enum rdt_status status, const char *msg);

    /* Any thread. Answers disconnect: every op of the connection has ended, nothing can land in its memory any more. */
    void (*conn_closed)(void *conn_ctx);

    /* since 1.2: any thread, never inside an operation of the group. Answers group_connect: every rank can be reached. Once. */
    void (*group_ready)(void *group_ctx);

    /* since 1.2: any thread. The group cannot be connected, or is of no use any more. At most once; the core then closes it. */
    void (*group_failed)(void *group_ctx, enum rdt_status status, const char *msg);

    /* since 1.2: any thread. Answers group_close: every op of the group has ended, nothing can land in its memory any more. */
    void (*group_closed)(void *group_ctx);

    /* since 1.3: any thread, one of the device's driver included; takes no lock that copy_start is called with. Ends a copy: exactly once
     * for each that was started, never inside copy_start, and only when nothing reads or writes its memory any more. RDT_OK, or
     * RDT_SYSTEM with the vendor's text in msg (copied; may be NULL). The copy belongs to the core again. */
    void (*copy_done)(struct rdt_memory_copy *copy, enum rdt_status status, const char *msg);
};

/* ---- memory kinds ---- */

struct rdt_block { /* one allocation or import; the struct is the core's */
    void *addr;    /* where the daemon sees it, NULL until map */
    uint64_t bytes;
    int fd;         /* the plug-in's own descriptor, or -1 */
    void *priv;     /* the plug-in's */
    bool read_only; /* set by import: it can only be mapped for reading, so it must be no target of a copy or a receive */
    /* since 1.1: set by alloc and import: its pages are so large, and may be missing when they are touched (hugetlb, with a hole that a
     * client has punched): the core copies from and to it under a guard. The mapping is a whole number of them. 0: none of this. */
    uint64_t page_bytes;
    /* since 1.3: set by the core before alloc and import, and valid while the block is: the uuid of its device, as devices says it; "" of
     * kinds that have none. */
    const char *device;
};

enum rdt_import_kind { RDT_IMPORT_MEMFD = 0, RDT_IMPORT_VMM = 1, RDT_IMPORT_LEGACY_IPC = 2 };

struct rdt_import {
    enum rdt_import_kind kind;
    uint64_t bytes;
    uint64_t offset;
    const int *fds; /* borrowed: the plug-in dups what it keeps */
    uint32_t n_fds;
    const uint64_t *chunk_bytes; /* [n_fds], VMM only */
    const void *handle;
    size_t handle_bytes;
};

/* since 1.3: one device of a memory kind. Texts are valid while the kind is open. */
struct rdt_device {
    const char *uuid;        /* "GPU-8f1c...": how everybody names it; never an index. At most 64 bytes */
    const char *name;        /* "NVIDIA H200"; for people */
    uint64_t bytes;          /* of its memory */
    bool opened;             /* it is in use here, and takes memory for that, too: */
    uint64_t overhead_bytes; /* what the plug-in's use of it costs on it beside the blocks (a context); 0 until opened;
                              * UINT64_MAX: it cannot be told */
    const char *why_not;     /* NULL, or why it cannot be used */
};

/* since 1.3: what another process of the same owner maps a block by. Memory on a device knows no right to read only. */
struct rdt_export {
    enum rdt_import_kind kind; /* VMM: one fd for each chunk; LEGACY_IPC: the handle */
    uint64_t offset;           /* of the block's first byte in what they name together */
    uint32_t n_fds;            /* 1..RDT_EXPORT_MAX_FDS: VMM only */
    const int *fds;            /* borrowed from the plug-in, valid while the block is: the core dups what it sends */
    const uint64_t *chunk_bytes; /* [n_fds], likewise */
    uint8_t handle[RDT_EXPORT_HANDLE_BYTES];
    size_t handle_bytes;
};

/* since 1.3: one piece of a copy: `rows` runs of `bytes`, which begin to_step and from_step bytes after one another, at least `bytes` each (1 row: no matter). */
struct rdt_copy_piece {
    void *to;
    const void *from;
    uint64_t bytes, rows, to_step, from_step;
};

/* since 1.3: a copy with one end or both on devices of the kind. Allocated by the core, lent to the plug-in from copy_start until
 * copy_done. */
struct rdt_memory_copy {
    const struct rdt_block *to, *from; /* mapped; NULL: that end is host memory */
    const struct rdt_copy_piece *pieces;
    uint32_t n_pieces; /* they do not overlap; in any order */
    bool host_pinned;  /* all of the host end was given to pin, and is still */
    void *priv[6];     /* the plug-in's while it has the copy; zeroed by the core before the start */
};

struct rdt_memory_ops {
    uint32_t struct_size;
    const char *name; /* "host", "cuda" */

    enum rdt_status (*open)(const struct rdt_host *host, void **memory_p, struct rdt_error *err);
    void (*close)(void *memory);

    /* Zeroed memory with its pages reserved; fits to be exported. NO_MEMORY, SYSTEM. */
    enum rdt_status (*alloc)(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                             struct rdt_error *err);

    /* INVALID says what the handle lacks. NULL: cannot import. */
    enum rdt_status (*import)(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                              struct rdt_error *err);

    /* Nothing touches the block any more. */
    void (*free)(void *memory, struct rdt_block *block);

    /* Sets block->addr; called once, before the first copy or registration. warm: every page is touched too, on a pool thread; else it
     * returns at once, and may be called on the loop. */
    enum rdt_status (*map)(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err);

    /* A new fd of the block for another process; the caller owns it. writable false: one that cannot be mapped writable;
     * UNSUPPORTED if this memory knows no such right. NULL: cannot be shared. */
    enum rdt_status (*share)(void *memory, const struct rdt_block *block, bool writable, int *fd_p, struct rdt_error *err);

    /* bytes from src to dst, both mapped blocks' memory of this kind or host memory. Returns when the copy is finished. */
    enum rdt_status (*copy)(void *memory, void *dst, const void *src, uint64_t bytes, struct rdt_error *err);

    /* since 1.1: before free, of memory that the plug-in allocated. Its pages go back to the system now, even if another process has it
     * mapped; who still looks there sees zeros. NULL: they go when the last mapping does. */
    void (*discard)(void *memory, struct rdt_block *block);

    /* since 1.1: nobody gains the right to write the block any more, for ever and whoever he is, by whatever descriptor. proof false:
     * what is mapped stays as it is (the core's own mapping, which it no longer writes to); at once. proof true: nobody has such a
     * right left from before either, or BUSY and nothing has changed; the core's own mapping has ended in both cases (addr is NULL),
     * and the next one is for reading; on a pool thread. NULL: this memory cannot be sealed. */
    enum rdt_status (*seal)(void *memory, struct rdt_block *block, bool proof, struct rdt_error *err);

    /* since 1.1: what an allocation of so many bytes takes, where that is more than whole pages of the system. NULL: it never is. */
    uint64_t (*round)(void *memory, uint64_t bytes);

    /* since 1.1: as alloc, for memory that is never shared. NULL, or UNSUPPORTED: as any other. */
    enum rdt_status (*alloc_private)(void *memory, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err);

    /* ---- since 1.3: memory on devices; all of devices, export_block, copy_start and zero, or none ----
     * alloc, import, map, free and zero of such memory are called on pool threads only. alloc: NO_MEMORY if the device is full, naming it.
     * import: what an owner offers, by chunk fds or a legacy handle. The plug-in opens a handle once, however often it is imported, and
     * closes it with the last block of it, after every copy from there; it keeps nothing of it beyond that. copy, share, seal, discard and
     * alloc_private may be NULL: the core does not call them. */

    /* At most max of them into devices_p; returns how many there are. The same ones in the same order while the kind is open; only what
     * changes (opened, overhead_bytes, why_not) does. On the loop thread: at once, opens nothing. */
    uint32_t (*devices)(void *memory, struct rdt_device *devices_p, uint32_t max);

    /* What the block is mapped by elsewhere; the same each time. At once, on the loop thread. UNSUPPORTED: this block cannot be. */
    enum rdt_status (*export_block)(void *memory, const struct rdt_block *block, struct rdt_export *export_p, struct rdt_error *err);

    /* Queues the copy and returns; never waits for the device. Several may be under way, in no order. Loop or pool thread, several at a
     * time. On an error copy_done never comes. Between two devices: by the way that the vendor has (peer access, else its own staging). */
    enum rdt_status (*copy_start)(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err);

    /* The whole block, which is mapped, is zero when it returns. */
    enum rdt_status (*zero)(void *memory, struct rdt_block *block, struct rdt_error *err);

    /* Host memory of the core's that copies to and from devices of this kind will go through, at full speed from now on. On a pool
     * thread. NULL, or an error: it is used unpinned. *pin_p is given back to unpin, which comes when no copy uses it. */
    enum rdt_status (*pin)(void *memory, void *addr, uint64_t bytes, void **pin_p, struct rdt_error *err);
    void (*unpin)(void *memory, void *pin);

    /* How bytes go from one device to another (uuids), for people: "peer access (NVLink)", "through the driver's host memory". At most
     * size - 1 bytes and a zero. At once. NULL: nothing to say. */
    void (*describe_copy)(void *memory, const char *from, const char *to, char *text_p, size_t size);

    /* since 1.4: memory for so many bytes that a client has made for a snapshot, by a descriptor (borrowed) of the client's. The plug-in
     * checks that it has the whole pages for them, all there, and no more than that, and that nobody can write it, cut it or take a
     * page away any more; then it has a way of its own to it, for reading, which nothing that the client does to it can end. seal is
     * not called for it, share for reading only. INVALID says what it lacks. At once, on the loop thread, and it never waits for
     * whoever made it. NULL: it takes none. */
    enum rdt_status (*take)(void *memory, int fd, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err);
};

/* ---- transports ---- */

struct rdt_piece {
    void *addr;
    uint64_t bytes;
    void *registration; /* what register gave for the region the piece lies in; NULL if the transport registers nothing */
};

/* One movement of one chunk. Allocated by the core, lent to the plug-in from the post until op_done. */
struct rdt_op {
    uint64_t transfer; /* with `chunk`: the key that matches a send of one node with a receive of the other; */
    uint64_t chunk;    /* unique within the connection */
    struct rdt_piece piece;
    const void *key; /* post_read: the owner's packed key ... */
    size_t key_bytes;
    uint64_t key_offset; /* ... and the byte offset in the registered region */
    void *priv[6];       /* the plug-in's while it has the op; zeroed by the core before the post */
    /* since 1.3 (rdt_host.struct_size has copy_done): where the piece lies; valid as long as the op is lent. */
    const char *memory_kind; /* "host", "cuda" */
    const char *device;      /* its uuid; "" of kinds that have none */
};

enum rdt_sides { RDT_ONE_SIDED = 1, RDT_TWO_SIDED = 2 };

/* since 1.2: one rank of a group. */
struct rdt_group_member {
    uint8_t node_uuid[16];
    const char *device; /* "" is the host */
};

/* since 1.2: a group as one of its ranks sees it. Valid inside group_create only. */
struct rdt_group_desc {
    uint32_t struct_size;
    const char *name;
    uint64_t epoch; /* grows each time the group is formed anew */
    uint32_t rank, size;
    const struct rdt_group_member *members; /* [size], in order of rank; no two are equal */
    uint8_t token[16];                      /* random, the same on every rank, of this group and no other */
};

struct rdt_transport_ops {
    uint32_t struct_size;
    const char *name;                /* "ucx"; case-insensitive */
    const char *const *memory_kinds; /* NULL-terminated: what it reads from and writes to directly */
    uint32_t speed;                  /* rank among the transports that fit, higher is tried first; ucx 100, stream 50 */

    /* May fail with UNSUPPORTED and the reason in words ("trusted_network is not set: ..."): the transport is then listed as not
     * available, and the reason is what explain shows. */
    enum rdt_status (*open)(const struct rdt_host *host, void **transport_p, struct rdt_error *err);

    /* Every connection is destroyed. Joins the plug-in's threads. */
    void (*close)(void *transport);

    /* Version of the vendor library in use, e.g. "1.13.1": ends whose strings differ do not use this transport together. */
    const char *(*version)(void *transport);

    /* Once per region, on a pool thread, before the first op that uses it; NULL: nothing to register. */
    enum rdt_status (*register_memory)(void *transport, void *addr, uint64_t bytes, const char *memory_kind,
                                       void **registration_p, struct rdt_error *err);
    void (*unregister_memory)(void *transport, void *registration);

    /* The state for one peer node, unconnected. conn_ctx is the core's, handed back by the host table. */
    enum rdt_status (*connection_create)(void *transport, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                         struct rdt_error *err);

    /* After conn_closed, or when it was never offered nor connected. */
    void (*connection_destroy)(void *conn);

    /* What the peer needs to connect to this end: address and one-time token. Travels over the peer link only. */
    enum rdt_status (*offer)(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err);

    /* The peer's offer has come. Failing later is reported by conn_failed. */
    enum rdt_status (*connect)(void *conn, const void *blob, size_t bytes, struct rdt_error *err);

    /* enum rdt_sides, ored: what this connection can do for that memory kind. */
    uint32_t (*sides)(void *conn, const char *memory_kind);

    /* Ends every op of the connection, with whatever force it takes, then conn_closed. */
    void (*disconnect)(void *conn);

    /* Two-sided: the send with the same transfer and chunk ends up in the receive; equal bytes. The core posts a receive before its
     * peer posts the send. */
    enum rdt_status (*post_send)(void *conn, struct rdt_op *op, struct rdt_error *err);
    enum rdt_status (*post_recv)(void *conn, struct rdt_op *op, struct rdt_error *err);

    /* One-sided: the owner packs a key of a registration, the reader pulls. */
    enum rdt_status (*pack_key)(void *transport, void *registration, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                                struct rdt_error *err);
    enum rdt_status (*post_read)(void *conn, struct rdt_op *op, struct rdt_error *err);

    /* Asks for an early end: the op still ends by op_done, with OK if it was too late to stop it. An op that was not matched with the
     * peer's yet must end at once. NULL: cannot abort; the core disconnects when it has to. */
    void (*cancel)(void *conn, struct rdt_op *op);

    /* since 1.2: which way the bytes of this connection go, in the vendor's own words: "tcp/eth0", "rc_mlx5/mlx5_0:1"; what is wrong with
     * it, too. For people: at most size - 1 bytes and a zero, one line. AGAIN: not known yet. NULL: nothing to say. */
    enum rdt_status (*describe)(void *conn, char *text_p, size_t size);

    /* since 1.2: two-sided. The ordered queue ("gpu0") that this end's sends and receives in that memory stand in, whatever their
     * connection: one may hold up those posted after it until its counterpart on the other node is posted. The core then posts them
     * chunk by chunk, one transfer after the other, in an order that is the same in the queues of all nodes; of one transfer the
     * receives are posted before the sends. 64 bytes at most; valid while the connection is. NULL, or nothing given: not ordered, the
     * core posts as it comes. */
    const char *(*queue)(void *conn, const char *memory_kind, const char *device);

    /* since 1.2: groups; all of these, or none. The state for one rank, unconnected. group_ctx is the core's. */
    enum rdt_status (*group_create)(void *transport, const struct rdt_group_desc *desc, void *group_ctx, void **group_p,
                                    struct rdt_error *err);

    /* since 1.2: what the other ranks need to connect to this one, or nothing (0 bytes). Travels over peer links only. Called once. */
    enum rdt_status (*group_offer)(void *group, uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err);

    /* since 1.2: the offers of all ranks, [size] in their order, this one's too; valid inside the call. Then comes group_ready or
     * group_failed; the core has the patience. */
    enum rdt_status (*group_connect)(void *group, const void *const *blobs, const size_t *bytes, struct rdt_error *err);

    /* since 1.2: another rank, as a conn for sides, post_send, post_recv and cancel; after group_ready, until group_close. */
    void *(*group_conn)(void *group, uint32_t rank);

    /* since 1.2: ends every op of the group, with whatever force it takes, then group_closed. In any state after group_create. */
    void (*group_close)(void *group);

    /* since 1.2: after group_closed, or when it was never offered nor connected. */
    void (*group_destroy)(void *group);

    /* since 1.2: asked once after open. False: as it is configured it neither registers memory nor reads one-sided, and these
     * operations count as NULL. NULL: it does what it has operations for. */
    bool (*reads)(void *transport);

    /* since 1.3: asked once after open, of each of memory_kinds. False: with the library that is there it does not move this one, which
     * then counts as not listed. NULL: it moves all that are listed. */
    bool (*moves)(void *transport, const char *memory_kind);

    /* since 1.3: groups; both of these, or none (then the core sends to each rank from the root). One chunk from the rank `root` to all
     * others, which each rank's core posts with the same `transfer` (the root's number), `chunk` and length: at the root the piece is read,
     * elsewhere it is written. The root posts last, when all others stand; otherwise ranks post in any order, several broadcasts and roots
     * at a time, so that (root, transfer, chunk) says which belong together, and sends and receives go on meanwhile. It ends when the
     * plug-in no longer needs the piece, which it may pass on from. Not asked of a transport whose operations stand in a queue. */
    enum rdt_status (*post_broadcast)(void *group, uint32_t root, struct rdt_op *op, struct rdt_error *err);

    /* since 1.3: as cancel, of one rank's part. Before the root has posted it must end at once; whenever it comes, the other ranks get
     * their bytes all the same. */
    void (*cancel_broadcast)(void *group, struct rdt_op *op);
};

/* ---- the backend ---- */

struct rdt_config_key {
    const char *name;
    const char *fallback; /* value when the configuration says nothing */
    const char *help;     /* one line */
};

struct rdt_backend {
    uint32_t abi_version;                     /* RDT_BACKEND_ABI */
    uint32_t struct_size;                     /* sizeof(struct rdt_backend) */
    const char *name;                         /* also the section of the configuration */
    const char *version;                      /* of the plug-in */
    const struct rdt_config_key *config_keys; /* ends with a NULL name; NULL: none */
    const struct rdt_memory_ops *memory;
    const struct rdt_transport_ops *transport;
};

const struct rdt_backend *rdt_backend_init(void);

#ifdef __cplusplus
}
#endif
#endif
