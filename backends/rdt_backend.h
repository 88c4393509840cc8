/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-in interface of rdtd: memory kinds and transports. This header is installed, and it only ever grows
 * at the end of its structs. rdt_plugin.h, beside it, holds what nearly every transport needs; rdt-backend(7)
 * is the manual.
 *
 * A backend is one shared object (.so) that exports
 *
 *     const struct rdt_backend *rdt_backend_init(void);
 *
 * and describes at most one memory kind and at most one transport by tables of operations. The core (rdtd) reads
 * abi_version and struct_size of every table first and uses only the part that both sides know. It treats an
 * operation that is missing or NULL as not supported: what a backend can do follows from the operations that it
 * has, and is stated nowhere else. A comment "since 1.N" names the release that added a field or operation.
 *
 * Rules for every operation
 * - Arguments. The core checks bounds, states, permissions and deadlines before it calls. A plug-in may assert
 *   them. What arrives from a peer (offers, keys) is not checked: the plug-in must check it.
 * - Results. An operation that can fail returns RDT_OK, or a status with err filled in: one sentence that names
 *   the thing and, where there is one, the remedy. It writes its results (the parameters named ..._p) only on
 *   success.
 * - Ownership. Pointers passed to an operation are borrowed and valid until it returns, unless its comment says
 *   otherwise.
 * - Threads. The comment of each operation, and of each group of operations, names the thread that calls it:
 *     loop thread      serves all clients and peers. The operation returns at once: it does not block, and hands what
 *                      takes time to a thread of the plug-in, which reports through the host table.
 *     pool threads     a few threads that all users share; each runs one call at a time. The operation may take as long as
 *                      its bytes need, but must not wait for anybody else, such as a client or a peer.
 *     owner's thread   works only for the user who owns the memory, and may wait.
 *     opening thread   the main thread, before the daemon serves anybody; a thread of its own for a plug-in that is loaded
 *                      or unloaded later, and at the daemon's end. It may take as long as it likes.
 *   rdt-backend(7) has the list. Functions of the host table are called from any thread.
 * - Processor time. The work of a plug-in must not delay the other processes of the machine. The daemon gives its
 *   threads, and those that a plug-in starts, short scheduler slices (Linux 6.12 and later). A thread that copies
 *   or polls calls sched_yield every few tens of microseconds.
 * - Process state. A plug-in handles no signals, blocks them in its threads, changes no process-wide state that it
 *   does not have to change, and prints nothing: it logs through the host table.
 *
 * When the core calls which operation of a transport. A "conn" stands for one peer node in one epoch, that is,
 * from the moment a peer link comes up until it goes down:
 *
 *     load:            rdt_backend_init, open
 *     link comes up:   connection_create, offer  ->  the blob travels to the peer  ->  connect(the peer's blob)
 *     fetch, reader:   register_memory (once per region)   post_recv ...   op_done
 *     fetch, owner:    register_memory (once per region)   post_send ...   op_done
 *     abort:           cancel ...   op_done; if op_done does not come within the grace time:
 *                      disconnect, every operation ends, conn_closed
 *     link goes down:  disconnect, every operation ends, conn_closed, connection_destroy
 *     free:            unregister_memory
 *     unload:          close
 *
 * A transport that moves bytes only within groups has group_create and no connection_create (since 1.2). A
 * "group" here is one rank's end of one group in one epoch, and a rank is a pair of a node and a device:
 *
 *     forming:         group_create, group_offer  ->  the blobs of all ranks travel to all nodes  ->
 *                      group_connect, group_ready
 *     fetch:           register_memory, post_send, post_recv, cancel as above, on the conn that group_conn returns
 *                      for the peer's rank
 *     failure, an abort that does not come to rest, a lost node, or the end of the group:
 *                      group_close, every operation ends, group_closed, group_destroy;
 *                      after a failure the group forms again under the next epoch
 *
 * A memory kind whose memory lies on devices (since 1.3) has the operation devices, and with it export_block,
 * copy_start and zero. The core never touches such memory itself: block->addr is an address of the device, for the
 * plug-in's copies and for transports that list the kind. A plug-in does nothing with a device, and makes no
 * context on it, before the core allocates or imports memory there.
 *
 *     load:            open, devices
 *     ALLOC:           alloc, map (warm)   ->  export_block for the processes of its owner, in constant time
 *     destination:     alloc_unzeroed, map (warm), zero_part ..., copy_start ... copy_done   ->  export_block
 *     IMPORT:          import, map (warm)
 *     put, fetch:      copy_start ... copy_done      device to device, device to host, or host to device
 *     between nodes:   register_memory by a transport that moves the kind; otherwise through host memory that
 *                      was pinned once:
 *                      pin, [copy_start ... copy_done, post_send | post_recv, copy_start ... copy_done], unpin
 *     reuse:           zero, before memory that held one owner's bytes passes to another owner or counts as new
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
#define RDT_EXPORT_MAX_FDS 4096 /* chunks of one block, at most */
#define RDT_EXPORT_HANDLE_BYTES 64

struct rdt_op;
struct rdt_memory_copy;

enum rdt_log_level { RDT_LOG_ERROR = 0, RDT_LOG_WARN = 1, RDT_LOG_INFO = 2, RDT_LOG_DEBUG = 3, RDT_LOG_TRACE = 4 };

/* ---- what the core offers ---- */

struct rdt_host {
    uint32_t abi_version;
    uint32_t struct_size;
    void *ctx; /* the first argument of the functions below that take one */

    /* Logs one line: lower case, without a newline. The core adds the backend's name. Any thread. */
    void (*log)(void *ctx, enum rdt_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

    /* Returns the value of a configuration key: one of the backend's own section, as declared in config_keys, or
     * one that every backend may read: "pool_idle" (after how many nanoseconds unused memory is
     * freed; since 1.2), "trusted_network" ("yes" or "no"), "peers" ("no": this
     * daemon never has other nodes, and a transport must not open a port), "interfaces" (comma-separated; "" means
     * any) and "listen_host" (the numeric address of the peer link; "" if there is none). Returns NULL if there is
     * no such key. To be called only inside open; the text is valid until open returns. */
    const char *(*config)(void *ctx, const char *key);

    /* Ends an operation. The plug-in calls it exactly once for each operation whose post returned RDT_OK, never
     * inside the posting call, and only when neither the plug-in nor anything that it started can touch the
     * operation's memory any more. status is RDT_OK, RDT_CANCELLED, or RDT_TRANSPORT with the vendor's text in msg
     * (copied; may be NULL). From this call on, op belongs to the core again. Any thread. */
    void (*op_done)(struct rdt_op *op, enum rdt_status status, const char *msg);

    /* Reports that a connection cannot be used any more: the peer is gone, or the endpoint failed. conn_ctx is what
     * connection_create received; msg is copied and may be NULL. At most once per connection. The core then calls
     * disconnect. Any thread. */
    void (*conn_failed)(void *conn_ctx, enum rdt_status status, const char *msg);

    /* Answers disconnect: every operation of the connection has ended, and nothing can be written to their memory
     * any more. Exactly once; the core may call connection_destroy at once. Any thread. */
    void (*conn_closed)(void *conn_ctx);

    /* since 1.2: answers group_connect: this rank can reach every other rank. Once, never inside an operation of the
     * group. Any thread. */
    void (*group_ready)(void *group_ctx);

    /* since 1.2: reports that the group cannot be connected, or cannot be used any more. At most once; the core then
     * calls group_close. msg is copied and may be NULL. Any thread. */
    void (*group_failed)(void *group_ctx, enum rdt_status status, const char *msg);

    /* since 1.2: answers group_close: every operation of the group has ended, and nothing can be written to their
     * memory any more. Exactly once. Any thread. */
    void (*group_closed)(void *group_ctx);

    /* since 1.3: ends a copy. The plug-in calls it exactly once for each copy whose copy_start returned RDT_OK, never
     * inside copy_start, and only when nothing reads or writes the copy's memory any more. status is RDT_OK, or
     * RDT_SYSTEM with the vendor's text in msg (copied; may be NULL). From this call on, copy belongs to the core
     * again. Any thread, including one of the device's driver: the function takes no lock that the core holds
     * while it calls copy_start. */
    void (*copy_done)(struct rdt_memory_copy *copy, enum rdt_status status, const char *msg);

    /* since 1.12: writes the numeric address at which this node's end of the peer link to that connection's node is, which is
     * where that node can be expected to reach this one; "" if there is no link. A transport that listens at every address of
     * the node offers it. Loop thread. */
    void (*conn_address)(void *conn_ctx, char *text_p, size_t size);
};

/* ---- memory kinds ---- */

/* One allocation or import. The struct is the core's; alloc and import fill it. */
struct rdt_block {
    void *addr; /* where the daemon has it mapped; NULL before map */
    uint64_t bytes;
    int fd;         /* a descriptor that the plug-in owns, or -1 */
    void *priv;     /* for the plug-in's use */
    bool read_only; /* set by import: it can only be mapped for reading, and is no target of copies or receives */
    /* since 1.1: set by alloc and import. 0, or the size of its pages if touching one may fail (hugetlb memory into
     * which a client has punched a hole): the core then catches SIGBUS while it copies. The mapping is a whole number
     * of such pages. */
    uint64_t page_bytes;
    /* since 1.3: the uuid of its device, as devices reports it; "" for kinds without devices. The core sets it before
     * alloc and import, and it is valid as long as the block is. */
    const char *device;
};

enum rdt_import_kind { RDT_IMPORT_MEMFD = 0, RDT_IMPORT_VMM = 1, RDT_IMPORT_LEGACY_IPC = 2 };

struct rdt_import {
    enum rdt_import_kind kind;
    uint64_t bytes;
    uint64_t offset;
    const int *fds; /* [n_fds], borrowed: the plug-in duplicates what it keeps */
    uint32_t n_fds;
    const uint64_t *chunk_bytes; /* [n_fds], VMM only */
    const void *handle;
    size_t handle_bytes;
};

/* since 1.3: one device of a memory kind. The texts are valid while the kind is open. */
struct rdt_device {
    const char *uuid;        /* "GPU-8f1c...": names the device everywhere, never an index; at most 64 bytes */
    const char *name;        /* for people: "NVIDIA H200" */
    uint64_t bytes;          /* size of its memory */
    bool opened;             /* the plug-in uses it and has a context on it */
    uint64_t overhead_bytes; /* device memory that the context takes beside the blocks; 0 before it is opened,
                              * UINT64_MAX if it cannot be determined */
    const char *why_not;     /* NULL, or a sentence: why the device cannot be used */
};

/* since 1.3: what another process of the same owner needs to map a block. Device memory has no read-only mappings. */
struct rdt_export {
    enum rdt_import_kind kind;   /* VMM: one fd for each chunk; LEGACY_IPC: the handle */
    uint64_t offset;             /* of the block's first byte within the memory that the fds or the handle name */
    uint32_t n_fds;              /* 1..RDT_EXPORT_MAX_FDS: VMM only */
    const int *fds;              /* the plug-in's, valid while the block is; the core duplicates what it sends */
    const uint64_t *chunk_bytes; /* [n_fds], valid while the block is */
    uint8_t handle[RDT_EXPORT_HANDLE_BYTES];
    size_t handle_bytes;
};

/* since 1.3: one piece of a copy: `rows` runs of `bytes` each. A run begins to_step bytes after the one before it at
 * the target, and from_step bytes at the source; both steps are at least `bytes` and do not matter for one row. */
struct rdt_copy_piece {
    void *to;
    const void *from;
    uint64_t bytes, rows, to_step, from_step;
};

/* since 1.3: a copy with one or both ends on devices of the kind. The core allocates it; the plug-in may use it from
 * copy_start until it calls copy_done. */
struct rdt_memory_copy {
    const struct rdt_block *to, *from; /* mapped blocks; NULL: that end is host memory */
    const struct rdt_copy_piece *pieces;
    uint32_t n_pieces; /* they do not overlap, and may be copied in any order */
    bool host_pinned;  /* all memory of the host end is pinned by pin */
    void *priv[6];     /* for the plug-in's use; the core zeroes it before copy_start */
};

/* The operation that made a block which is restored. TAKEN: `take`, of an older daemon; nobody can write such memory. FILE:
 * none of them. The descriptor is then a read-only one of a regular file that belongs to the daemon and that nobody changes.
 * The block is read-only, and has page_bytes, because touching it may fail as reading a disk may. */
enum rdt_restore { RDT_RESTORE_ALLOCATED, RDT_RESTORE_IMPORTED, RDT_RESTORE_TAKEN, RDT_RESTORE_FILE };

struct rdt_memory_ops {
    uint32_t struct_size;
    const char *name; /* "host", "cuda" */

    /* Opens the kind and stores its state in *memory_p. *host is valid until close returns. UNSUPPORTED, with the
     * reason in a sentence, if there is no such memory here: the core then lists the kind as not available. close
     * frees everything: every block has been freed, and no copy is under way. Opening thread. */
    enum rdt_status (*open)(const struct rdt_host *host, void **memory_p, struct rdt_error *err);
    void (*close)(void *memory);

    /* Allocates `bytes` of zeroed memory whose pages are reserved and which can be shared. device: see
     * rdt_block.device; since 1.13 for the kind "host" also "node0", "node1", ...: the NUMA node whose memory is preferred.
     * Fills *block_p, which the core keeps until free. Errors: NO_MEMORY (the message names the device if it is full), SYSTEM.
     * Pool threads; for at most 16 KiB of a kind without devices the loop thread. */
    enum rdt_status (*alloc)(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                             struct rdt_error *err);

    /* Makes a block from memory that a client owns. The handle and the descriptors in *import are borrowed. INVALID,
     * with a sentence that says what is wrong with the handle; NO_MEMORY; SYSTEM. NULL: the kind cannot import. Loop
     * thread, which must not wait for whoever owns the descriptor (a file system may be a client's process); pool
     * threads for a kind with devices. */
    enum rdt_status (*import)(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                              struct rdt_error *err);

    /* Frees a block of alloc, alloc_private, import or restore, and its mapping. Nothing touches the block any more.
     * Pool threads, and the owner's thread for imported memory; the loop thread for at most 16 KiB that were not
     * imported, and for more when there is no memory to hand the work over. */
    void (*free)(void *memory, struct rdt_block *block);

    /* Maps the block and sets block->addr. The core calls it once, before the first copy or registration, and once
     * more after seal has ended the mapping. With `warm` the plug-in also touches every page, on pool threads.
     * Without `warm` it runs on the loop thread and returns at once. */
    enum rdt_status (*map)(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err);

    /* Stores in *fd_p a new descriptor by which another process can map the block. The caller owns it. A file of the plug-in's
     * own is opened anew for it, so that the kernel can tell the daemon whether another process still has it. If writable
     * is false, the descriptor must not allow a writable mapping; UNSUPPORTED if this memory knows no such right.
     * NULL: memory of this kind cannot be shared by a descriptor. Loop thread. */
    enum rdt_status (*share)(void *memory, const struct rdt_block *block, bool writable, int *fd_p, struct rdt_error *err);

    /* Copies `bytes` from src to dst, each either in a mapped block of this kind or in host memory. Returns when the
     * copy is finished. Pool threads; the loop thread for at most 256 KiB. */
    enum rdt_status (*copy)(void *memory, void *dst, const void *src, uint64_t bytes, struct rdt_error *err);

    /* since 1.1: called before free, for memory that the plug-in allocated. Returns the block's pages to the system
     * now, even if another process has them mapped; that process then reads zeros. NULL: the system takes the pages
     * when the last mapping ends. The thread of the free that follows. */
    void (*discard)(void *memory, struct rdt_block *block);

    /* since 1.1: makes the block read-only for ever: from now on nobody gains the right to write it, by whatever
     * descriptor. What happens to rights that somebody already has depends on `proof`:
     *   false   existing mappings stay, including the core's own, to which the core no longer writes. Loop thread.
     *   true    the core's own mapping ends (block->addr becomes NULL), and the next map is for reading.
     *           RDT_OK: nobody has the right to write any more. BUSY: somebody still has it, but may be the last who gets it.
     *           Another error: nothing has changed, or the mapping has ended.
     *           Owner's thread: it may wait for whoever still uses a page.
     * NULL: memory of this kind cannot be sealed. */
    enum rdt_status (*seal)(void *memory, struct rdt_block *block, bool proof, struct rdt_error *err);

    /* since 1.1: returns how many bytes an allocation of `bytes` takes, for a kind that rounds up to more than whole
     * pages of the system. NULL: the kind does not. Loop thread. */
    uint64_t (*round)(void *memory, uint64_t bytes);

    /* since 1.1: as alloc, for memory that will never be shared with another process, on the same threads. If it is
     * NULL or returns UNSUPPORTED, the core calls alloc. */
    enum rdt_status (*alloc_private)(void *memory, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err);

    /* ---- since 1.3: memory on devices. A kind has all of devices, export_block, copy_start and zero, or none ----
     * For such a kind the core calls alloc, import, map, free and zero on pool threads only. import receives what an
     * owner offers: the fds of chunks, or a legacy handle. The plug-in opens a handle once, however often it is
     * imported, closes it with the last block that uses it, after every copy from that block, and keeps nothing of
     * it beyond that. copy, share, seal, discard and alloc_private may be NULL: the core does not call them. */

    /* since 1.3: stores at most `max` devices in devices_p and returns how many there are in all. While the kind is
     * open the devices and their order stay the same; only `opened`, `overhead_bytes` and `why_not` change. Opens
     * no device. Opening thread once after open, then the loop thread. */
    uint32_t (*devices)(void *memory, struct rdt_device *devices_p, uint32_t max);

    /* since 1.3: fills *export_p with what another process needs to map the block; it is the same each time.
     * UNSUPPORTED: this block cannot be exported. Loop thread. */
    enum rdt_status (*export_block)(void *memory, const struct rdt_block *block, struct rdt_export *export_p,
                                    struct rdt_error *err);

    /* since 1.3: queues the copy and returns without waiting for the device; copy_done reports its end.
     * Several copies may be under way, and they may end in any order. If copy_start fails, copy_done is not
     * called. Between two devices the plug-in uses the vendor's way: peer access, or else the vendor's own
     * staging. Loop thread. */
    enum rdt_status (*copy_start)(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err);

    /* since 1.3: fills the whole block, which is mapped, with zeros; they are in place when it returns. Pool
     * threads. */
    enum rdt_status (*zero)(void *memory, struct rdt_block *block, struct rdt_error *err);

    /* since 1.3: pins host memory of the core, `bytes` at addr, through which copies to and from devices of this kind
     * will run at full speed. *pin_p is what the core passes to unpin once no copy uses the memory any more. If pin is
     * NULL or fails, the core uses the memory unpinned. Pool threads; unpin also the loop thread, when there is no
     * memory to hand the work over. */
    enum rdt_status (*pin)(void *memory, void *addr, uint64_t bytes, void **pin_p, struct rdt_error *err);
    void (*unpin)(void *memory, void *pin);

    /* since 1.3: describes for people how bytes travel between two devices, given by their uuids: "peer access
     * (NVLink)", "host memory of the driver". text_p has `size` bytes and receives one line that ends
     * with a zero. NULL: there is nothing to say. Loop thread, after a copy between the two has ended. */
    void (*describe_copy)(void *memory, const char *from, const char *to, char *text_p, size_t size);

    /* since 1.4; since 1.12 nothing calls it, and new plug-ins leave it NULL: snapshots always lie in memory of alloc. It made
     * a block from memory that a client had created and sealed. */
    enum rdt_status (*take)(void *memory, int fd, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err);

    /* since 1.5: restores a block of an earlier process of this daemon from its descriptor (rdt_block.fd), which the
     * plug-in owns on success. `bytes` is the argument of the alloc, import or take that made the block, and offset that
     * of the import. The descriptor comes from a process that this daemon trusts, yet the plug-in checks that the memory
     * has its full size and cannot shrink. INVALID. NULL: blocks of this kind cannot be restored, and objects in them end
     * with the daemon. Loop thread.
     * For a kind with devices, restore is called for a block of alloc for which export_block reported one descriptor, at
     * offset 0; `bytes` is the size of that chunk, and block_p->device is set. The plug-in maps the block and sets addr,
     * and refuses a block that it cannot import again. Memory that a client imported is imported again by `import`, with
     * the result of export_block. This happens before the daemon serves anybody: both may take as long as they like. */
    enum rdt_status (*restore)(void *memory, enum rdt_restore from, int take_fd, uint64_t offset, uint64_t bytes,
                               struct rdt_block *block_p, struct rdt_error *err);

    /* since 1.7: as alloc, but the block may contain bytes that others left in the memory. The core uses it for memory that it
     * writes before any other process can map it, and clears with zero_part the parts that it does not write. NULL: the core
     * calls alloc instead. Only for a kind with devices. Pool threads. */
    enum rdt_status (*alloc_unzeroed)(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                      struct rdt_error *err);

    /* since 1.7: as zero, for `bytes` bytes of the block from `offset` on. A kind with alloc_unzeroed has it. Pool threads. */
    enum rdt_status (*zero_part)(void *memory, struct rdt_block *block, uint64_t offset, uint64_t bytes, struct rdt_error *err);

    /* since 1.9: maps `bytes` bytes of an imported block from `offset` on, both of whole pages of the block (the last one may
     * lie behind the block's end), and stores their address, until unmap_part. NO_MEMORY: there is no address space or mapping
     * left. NULL is fine for both: the core calls neither, because it maps no host memory that a client imported. It reads and
     * writes block->fd instead, and calls map only for an imported block without a descriptor. */
    enum rdt_status (*map_part)(void *memory, const struct rdt_block *block, uint64_t offset, uint64_t bytes, void **addr_p,
                                struct rdt_error *err);
    void (*unmap_part)(void *memory, void *addr, uint64_t bytes);

    /* since 1.13: returns the NUMA node whose memory is nearest to the device, in which the core then places what it copies
     * from and to it; -1: unknown, or the machine has one only. NULL: -1. Opening thread. */
    int (*numa_node)(void *memory, const char *device);
};

/* ---- transports ---- */

struct rdt_piece {
    void *addr;
    uint64_t bytes;
    void *registration; /* of the region that contains the piece; NULL if the transport registers nothing, and for memory of the
                         * core that no client has, such as a buffer or the padding between two tensors */
};

/* One operation on one chunk. The core allocates it; the plug-in may use it from the post until it calls op_done. */
struct rdt_op {
    uint64_t transfer; /* with `chunk`, the key that matches a send of one node with a receive of the other; */
    uint64_t chunk;    /* the pair is unique within the connection */
    struct rdt_piece piece;
    const void *key; /* post_read: the key that the owner packed ... */
    size_t key_bytes;
    uint64_t key_offset; /* ... and the byte offset within the registered region */
    void *priv[6];       /* for the plug-in's use; the core zeroes it before the post */
    /* since 1.3 (rdt_host.struct_size covers copy_done): where the piece lies; valid until op_done. */
    const char *memory_kind; /* "host", "cuda" */
    const char *device;      /* uuid; "" for kinds without devices */
    /* since 1.7: the chunk in several pieces of memory of the same kind and device, in the order of its bytes. Only if
     * piece.addr is NULL, which it is for no other operation, and never with an older core, whose struct ends here. piece.bytes
     * is then the length of all pieces. Each has one byte or more. Pieces of a receive may overlap where nobody needs the bytes
     * (padding). n_pieces is at least 2, and at most what max_pieces has answered. The list is valid until op_done. The bytes
     * that travel are the same as those of one piece: the peer may have the chunk in other pieces, or in one. */
    const struct rdt_piece *pieces;
    uint32_t n_pieces;
};

enum rdt_sides { RDT_ONE_SIDED = 1, RDT_TWO_SIDED = 2 };

/* since 1.2: one rank of a group. */
struct rdt_group_member {
    uint8_t node_uuid[16];
    const char *device; /* uuid; "": host memory */
};

/* since 1.2: a group as one of its ranks sees it. Valid only inside group_create. */
struct rdt_group_desc {
    uint32_t struct_size;
    const char *name;
    uint64_t epoch; /* grows each time the group is formed anew */
    uint32_t rank, size;
    const struct rdt_group_member *members; /* [size], by rank; no two are equal */
    uint8_t token[16];                      /* random; the same on every rank of this group, and different in every other */
};

/* All operations run on the loop thread, but for open, close, version, reads and moves (opening thread) and
 * register_memory and unregister_memory (pool threads). */
struct rdt_transport_ops {
    uint32_t struct_size;
    const char *name;                /* "ucx"; case-insensitive */
    const char *const *memory_kinds; /* ends with NULL: the kinds it reads and writes directly */
    uint32_t speed;                  /* the core tries the higher first; ucx has 40, or 100 with RDMA; stream 50 */

    /* Opens the transport and stores its state in *transport_p. *host is valid until close returns. UNSUPPORTED, with
     * the reason in a sentence, if it cannot run here: the core then lists the transport as not available, with that
     * reason. If it does not run because trusted_network is not set, the reason names that key: `rdtctl doctor` then
     * reports no fault. Opening thread. */
    enum rdt_status (*open)(const struct rdt_host *host, void **transport_p, struct rdt_error *err);

    /* Closes the transport: joins the plug-in's threads and frees everything. Every connection and group has been
     * destroyed. Opening thread. */
    void (*close)(void *transport);

    /* Returns the version of the vendor library in use, e.g. "1.13.1"; valid until close. Two nodes whose strings
     * differ do not use this transport with each other. Opening thread, once after open. */
    const char *(*version)(void *transport);

    /* Registers `bytes` at addr, of the given memory kind, and stores in *registration_p what the core passes on in
     * rdt_piece.registration. Called once per region, before the first operation that uses the region.
     * unregister_memory follows when no operation uses the region any more. NULL: there is nothing to register. Pool
     * threads, and unregister_memory those of the region's free. */
    enum rdt_status (*register_memory)(void *transport, void *addr, uint64_t bytes, const char *memory_kind,
                                       void **registration_p, struct rdt_error *err);
    void (*unregister_memory)(void *transport, void *registration);

    /* Creates the state for one peer node, not yet connected. conn_ctx is the core's pointer for conn_failed and
     * conn_closed. Loop thread. */
    enum rdt_status (*connection_create)(void *transport, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                         struct rdt_error *err);

    /* Frees a connection: after conn_closed, or one that was neither offered nor connected. Loop thread. */
    void (*connection_destroy)(void *conn);

    /* Writes into blob what the peer needs to connect to this end, such as an address and a one-time token. The blob
     * travels over the encrypted peer link only. Loop thread. */
    enum rdt_status (*offer)(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err);

    /* Begins to connect to the peer, whose offer is `bytes` at blob. An error that is found later is reported by
     * conn_failed. Loop thread. */
    enum rdt_status (*connect)(void *conn, const void *blob, size_t bytes, struct rdt_error *err);

    /* Returns what this connection can do for a memory kind: an OR of enum rdt_sides, or 0. Loop thread. */
    uint32_t (*sides)(void *conn, const char *memory_kind);

    /* Ends every operation of the connection, by force where necessary, and then calls conn_closed. Loop thread:
     * it only begins to. */
    void (*disconnect)(void *conn);

    /* Two-sided: a send delivers its bytes into the receive that the other node has posted with the same transfer
     * and chunk; both have the same length. The core lets a node post a send only after the other has posted the
     * receive. If a post fails, op_done is not called for it. Loop thread. */
    enum rdt_status (*post_send)(void *conn, struct rdt_op *op, struct rdt_error *err);
    enum rdt_status (*post_recv)(void *conn, struct rdt_op *op, struct rdt_error *err);

    /* One-sided: pack_key writes into `key` what another node needs to read a registration; post_read reads from the
     * memory that such a key (op->key) names into the operation's piece. Loop thread. */
    enum rdt_status (*pack_key)(void *transport, void *registration, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                                struct rdt_error *err);
    enum rdt_status (*post_read)(void *conn, struct rdt_op *op, struct rdt_error *err);

    /* Asks that an operation end early. It still ends by op_done, with RDT_OK if it was too late to stop it. An
     * operation that has not been matched with the peer's yet must end at once. Both ends of a transfer that is given up
     * cancel what they have posted, in any order. NULL: the transport cannot abort an operation; the core disconnects
     * when it has to. Loop thread. */
    void (*cancel)(void *conn, struct rdt_op *op);

    /* since 1.2: describes for people the path that the bytes of this connection take, in the vendor's words ("tcp/eth0",
     * "rc_mlx5/mlx5_0:1"), and what is wrong with it. text_p has `size` bytes and receives one line that ends with a
     * zero. AGAIN: the path is not known yet. NULL: there is nothing to say. Loop thread. */
    enum rdt_status (*describe)(void *conn, char *text_p, size_t size);

    /* since 1.2: two-sided. Returns the name ("gpu0") of the ordered queue in which this end's sends and receives of
     * that memory wait, whatever their connection. In an ordered queue an operation may hold up those posted after
     * it until its counterpart on the other node is posted. The core then posts chunk by chunk, one transfer after
     * the other, in an order that is the same in the queues of all nodes; of one transfer it posts the receives
     * before the sends. The name has at most 64 bytes and is valid while the connection is. If queue is NULL or
     * returns NULL, operations are not ordered and the core posts them as they come. Loop thread. */
    const char *(*queue)(void *conn, const char *memory_kind, const char *device);

    /* since 1.2: a transport has all operations of groups, or none. Creates the state for one rank, not yet
     * connected. *desc is valid inside the call. group_ctx is the core's pointer for group_ready, group_failed and
     * group_closed. Loop thread. */
    enum rdt_status (*group_create)(void *transport, const struct rdt_group_desc *desc, void *group_ctx, void **group_p,
                                    struct rdt_error *err);

    /* since 1.2: writes into blob what the other ranks need to connect to this one; 0 bytes if they need nothing. The
     * blob travels over encrypted peer links only. Called once. Loop thread. */
    enum rdt_status (*group_offer)(void *group, uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES], size_t *bytes_p,
                                   struct rdt_error *err);

    /* since 1.2: begins to connect. blobs and bytes have `size` elements, the offers of all ranks in their order,
     * including this one's; they are valid inside the call. group_ready or group_failed follows. The core keeps the
     * deadline. Loop thread. */
    enum rdt_status (*group_connect)(void *group, const void *const *blobs, const size_t *bytes, struct rdt_error *err);

    /* since 1.2: returns the conn that stands for another rank in sides, post_send, post_recv and cancel.
     * Called after group_ready; the conn is valid until group_close. Loop thread. */
    void *(*group_conn)(void *group, uint32_t rank);

    /* since 1.2: ends every operation of the group, by force where necessary, and then calls group_closed. In any
     * state after group_create. Loop thread: it only begins to. */
    void (*group_close)(void *group);

    /* since 1.2: frees a group: after group_closed, or one that was neither offered nor connected. Loop thread. */
    void (*group_destroy)(void *group);

    /* since 1.2: called once, after open. False: as it is configured, the transport neither registers memory
     * nor reads one-sided, and the core treats these operations as NULL. NULL: the transport does what it has
     * operations for. Opening thread. */
    bool (*reads)(void *transport);

    /* since 1.3: called once after open, for each of memory_kinds. False: with the vendor library that is installed,
     * the transport does not move this kind, and the core treats it as not listed. NULL: it moves every kind that is
     * listed. Opening thread. */
    bool (*moves)(void *transport, const char *memory_kind);

    /* since 1.3; since 1.10 nothing calls these two, and new plug-ins leave them NULL: rdt_broadcast has the nodes of a group
     * fetch the object from each other. A plug-in that has them loads as before, and the conformance tests pass them over. They
     * sent one chunk from the rank `root` to all others, and ended one rank's part of that. */
    enum rdt_status (*post_broadcast)(void *group, uint32_t root, struct rdt_op *op, struct rdt_error *err);
    void (*cancel_broadcast)(void *group, struct rdt_op *op);

    /* since 1.6: called after moves has returned false for one of memory_kinds. Returns the reason, as one sentence for people
     * that names the remedy; valid until close. NULL: there is nothing to say. Opening thread. */
    const char *(*why_not_moved)(void *transport, const char *memory_kind);

    /* since 1.7: two-sided. Returns how many pieces (rdt_op.pieces) an operation of post_send or post_recv on this conn may
     * have in memory of that kind; 0 and 1: one. The core asks for host memory only. It gathers and scatters chunks that lie
     * in more pieces than that, which costs a copy: a transport that copies the bytes anyway saves that one by taking lists,
     * and a transport whose device reads memory by itself answers 1. The answer may change when the conn's path becomes
     * known; operations that an earlier answer allows may still be posted. NULL: one. Loop thread. */
    uint32_t (*max_pieces)(void *conn, const char *memory_kind);

    /* since 1.8: called once, before open, and also where open then fails. Returns the speed as the transport is configured,
     * in place of `speed`. NULL: `speed`. Opening thread. */
    uint32_t (*configured_speed)(const struct rdt_host *host);

    /* since 1.12: says what keeps the bytes of this connection from passing, as far as it is known before any operation has
     * failed: "192.0.2.7 port 7200: Connection refused". text_p has `size` bytes and receives one line that ends with a zero.
     * AGAIN: nothing is known to be wrong, and text_p is left alone; OK: bytes pass nevertheless, by another way; PEER_LOST: no
     * way is known. NULL: nothing is ever known. Loop thread. */
    enum rdt_status (*trouble)(void *conn, char *text_p, size_t size);
};

/* ---- the backend ---- */

struct rdt_config_key {
    const char *name;
    const char *fallback; /* the value if the configuration does not set the key; NULL (since 1.11): the key was removed, and
                             a configuration that sets it is refused */
    const char *help;     /* one line, for the generated rdtd.conf and its page; of a removed key: what to do instead */
};

struct rdt_backend {
    uint32_t abi_version;                     /* RDT_BACKEND_ABI */
    uint32_t struct_size;                     /* sizeof(struct rdt_backend) */
    const char *name;                         /* also the name of its section of the configuration */
    const char *version;                      /* of the plug-in itself */
    const struct rdt_config_key *config_keys; /* ends with an entry whose name is NULL; NULL: no keys */
    const struct rdt_memory_ops *memory;
    const struct rdt_transport_ops *transport;
};

const struct rdt_backend *rdt_backend_init(void);

#ifdef __cplusplus
}
#endif
#endif
