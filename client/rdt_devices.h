/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices: mappers for its kinds, and ranges of it that a program shares. rdt.h includes this header.
 *
 * librdt touches no device and links no vendor's library: it passes on descriptions of memory, and a library for the kind
 * (librdt-cuda) maps it. When that library has registered its mapper, rdt_alloc_with allocates device memory and
 * rdt_import_shared makes the caller's device memory known to the daemon. Tensors in either can be put, and can be targets of
 * fetches (data is the device's address), and fetches can place tensors there. Device memory that the daemon does not know must
 * not be passed to rdt_put or as a target, because librdt takes it for host memory. Only processes of the memory's own uid and
 * tenant receive its handles; other readers of the object get a copy.
 */
#ifndef RDT_DEVICES_H
#define RDT_DEVICES_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum rdt_shared_kind { RDT_SHARED_MEMFD = 0, RDT_SHARED_VMM = 1, RDT_SHARED_LEGACY_IPC = 2 };

/* A range of memory, described by what another process needs to map it. */
struct rdt_shared {
    size_t struct_size;
    const char *memory; /* kind: "cuda" */
    const char *device; /* uuid */
    enum rdt_shared_kind kind;
    uint64_t bytes;
    uint64_t offset;             /* of the range within the memory that the fds, or the handle, name */
    const int *fds;              /* VMM: [n_fds], one for each chunk, in order; borrowed */
    const uint64_t *chunk_bytes; /* [n_fds] */
    size_t n_fds;
    const void *handle; /* LEGACY_IPC: the handle of the whole allocation */
    size_t handle_bytes;
    int64_t timeout_ns; /* used by rdt_import_shared; 0: the default; negative: no limit */
};

/* How librdt itself writes memory of one kind, as plans do (rdt_plan.h): it puts bytes into host memory of the writer, and the
 * writer copies them to the device. The functions run without the connection's lock, must not call librdt but for
 * rdt_interrupted, and one thread at a time uses a writing. arg is the mapper's. */
struct rdt_writer {
    size_t struct_size;
    /* Finds the device in whose memory addr lies. *device_p: its uuid, valid for ever; NULL: it is not memory of this kind. */
    enum rdt_status (*find)(void *arg, const void *addr, const char **device_p, struct rdt_error *err);
    /* Begins to write memory of the device. */
    enum rdt_status (*begin)(void *arg, const char *device, void **writing_p, struct rdt_error *err);
    /* Waits until the work that is queued in the vendor's streams [n] of the device has ended. Negative: no limit. Errors:
     * TIMED_OUT, CANCELLED (rdt_interrupt_by), INVALID (a stream is being captured), those of the device. */
    enum rdt_status (*await)(void *writing, void *const *streams, size_t n, int64_t timeout_ns, struct rdt_error *err);
    /* Finds host memory for `bytes`, at most room_bytes; it stays the caller's until the next call of room or end. */
    enum rdt_status (*room)(void *writing, size_t bytes, void **room_p, struct rdt_error *err);
    /* Queues a copy of `rows` rows of row_bytes each, which lie next to one another in that memory, to addresses of the device
     * that are `pitch` bytes apart. */
    enum rdt_status (*copy)(void *writing, const void *from, void *to, size_t row_bytes, size_t rows, size_t pitch,
                            struct rdt_error *err);
    /* Ends the writing, when all its copies have ended; also after an error. */
    enum rdt_status (*end)(void *writing, struct rdt_error *err);
    size_t room_bytes;
};

/* How this process copies within a device of one kind: librdt copies an object that it has mapped into the targets of a fetch
 * so, and the daemon need not use the device. The functions must not call librdt, must not wait for work of the device, and one
 * thread at a time uses a copying. arg is the mapper's. */
struct rdt_copier {
    size_t struct_size;
    /* Begins copies within the device; they need not wait for work that the caller has queued there. */
    enum rdt_status (*begin)(void *arg, const char *device, void **copying_p, struct rdt_error *err);
    /* Queues a copy between addresses of the device. */
    enum rdt_status (*copy)(void *copying, const void *from, void *to, size_t bytes, struct rdt_error *err);
    /* OK: all copies that were queued have ended. AGAIN: they have not. Another error: the device copies no more. May run under
     * the connection's lock, as `end` may. The copies of one device should end in the order in which they were queued:
     * librdt asks about later ones only when the first has ended. */
    enum rdt_status (*ended)(void *copying, struct rdt_error *err);
    /* Ends the copies, after an answer of `ended` that was not AGAIN. */
    void (*end)(void *copying);
};

struct rdt_mapper {
    size_t struct_size;
    const char *memory; /* the kind of memory that it maps */
    /* Maps `shared`. *addr_p receives the address of the first byte in this process, and *mapping_p the value that is passed
     * to unmap. It runs in any thread that waits on the connection, under the connection's lock: it must not call librdt, and
     * must not wait for work that the caller has queued on the device. AGAIN: the memory cannot be mapped before such work has
     * ended. A fetch then waits, and its answer is mapped by a later call of map, some milliseconds later; other users of the
     * connection go on. */
    enum rdt_status (*map)(void *arg, const struct rdt_shared *shared, void **addr_p, void **mapping_p, struct rdt_error *err);
    /* Unmaps; runs once for each map, in any thread, when nothing uses the mapping any more. It must not call
     * librdt. */
    void (*unmap)(void *arg, void *addr, void *mapping);
    void *arg;
    /* The uuids of the devices that this process can map, the preferred one first. A fetch brings tensors that lie on any other
     * device to the first of these that the daemon has. n_devices 0: the process can map all devices. Copied. */
    const char *const *devices;
    size_t n_devices; /* at most 64 */
    /* NULL, or says whether this process uses the device already. A fetch that names no device then brings no tensors to one
     * that it does not use, where they would cost a context, unless it uses none at all. Called as map is, for each fetch. */
    bool (*uses)(void *arg, const char *device);
    const struct rdt_writer *writer; /* NULL: librdt does not write such memory. Borrowed until the connection ends */
    const struct rdt_copier *copier; /* NULL: the daemon copies within these devices. Borrowed, too */
    /* NULL, or says whether the mapper's library still uses the connection, or a device memory of it, as where a device hangs:
     * rdt_close waits for that as for copies. Runs under the connection's lock, must not call librdt, and must not wait. */
    bool (*busy)(void *arg, const rdt *rdt);
};

/* Registers a mapper for one kind of memory, until the connection ends. *mapper is copied; its arg is borrowed until then.
 * EXISTS: the kind already has a mapper. */
enum rdt_status rdt_map_by(rdt *rdt, const struct rdt_mapper *mapper, struct rdt_error *err);

/* Memory of a device that a reader has fetched without a copy stays mapped after rdt_release, so that the next fetch of it, or
 * of a later snapshot in the same memory, maps nothing, until the daemon says that it is to be freed or that there is too much
 * of it. Reads that now, without waiting, and unmaps what has ended; every other call does so too. Also lets go of what a copy
 * (struct rdt_copier) has used that nobody waits for any more. Until then the memory stays allocated, and charged. For the
 * library of a mapper, which calls it now and then in a thread of its own while *mapped_p is true: such memory, in use or not,
 * is mapped. It must not run beside rdt_close. Errors: INVALID (mapped_p is NULL), FORKED. */
enum rdt_status rdt_trim(rdt *rdt, bool *mapped_p, struct rdt_error *err);

/* Makes memory that the caller has at addr, and that `shared` describes, known to the daemon; rdt_dealloc releases it. The
 * fds are borrowed, and may be closed afterwards; any number of chunks is allowed. The caller must keep the memory until it
 * has called rdt_dealloc and no object or transfer uses the memory any more (rdt_wait_freed_range): otherwise the daemon
 * would read memory that no longer exists. Errors: UNSUPPORTED (the daemon has no such kind or device), INVALID, LIMIT,
 * SYSTEM (the device refused it; the sentence says why), TIMED_OUT. */
enum rdt_status rdt_import_shared(rdt *rdt, const struct rdt_shared *shared, void *addr, struct rdt_error *err);

/* rdt_import_shared for several ranges [n], which waits for the daemon once for all that take no more than one message. shared
 * and addrs [n] are as there. statuses [n] receives how each has ended; those that are OK stay known. Returns OK, or the first
 * error. */
enum rdt_status rdt_import_shared_many(rdt *rdt, const struct rdt_shared *const *shared, void *const *addrs, size_t n,
                                       enum rdt_status *statuses, struct rdt_error *err);

/* Finds the range of rdt_alloc, rdt_import or rdt_import_shared that contains all of [addr, addr + bytes). *known_p is false
 * if the daemon knows none of these bytes. *memory_p and *device_p, each may be NULL, receive the memory kind and the device's
 * uuid, and are valid as long as the range. INVALID: only a part of the bytes is known. */
enum rdt_status rdt_known(rdt *rdt, const void *addr, size_t bytes, bool *known_p, const char **memory_p, const char **device_p,
                          struct rdt_error *err);

struct rdt_device_info {
    char memory[33], uuid[65], name[96];
    uint64_t bytes;          /* of the device */
    uint64_t used_bytes;     /* the memory that the daemon has allocated on it */
    uint64_t limit_bytes;    /* the limit of used_bytes; 0: none */
    bool opened;             /* the daemon uses it */
    uint64_t overhead_bytes; /* the memory that using it takes in addition to used_bytes; UINT64_MAX: unknown */
    char why_not[128];       /* why it cannot be used; "": it can */
};
/* Writes the daemon's devices to devices_p, at most max. *count_p receives how many there are. */
enum rdt_status rdt_devices(rdt *rdt, struct rdt_device_info *devices_p, size_t max, size_t *count_p, struct rdt_error *err);

#ifdef __cplusplus
}
#endif

#endif
