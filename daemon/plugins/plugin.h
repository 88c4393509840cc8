/* SPDX-License-Identifier: Apache-2.0 */
/* The room of plug-ins (backends): loading their files, their instances, and the way from their threads to the loop.
 *
 * Owns: the loaded .so files, one instance of each memory kind and transport, and the queue of reports from their threads.
 * It checks tables before it calls anything in them, and the configuration's sections against the keys they declare.
 *
 * Shows: this header and plugin_blame.h (which plug-ins have crashed the daemon). All others are private.
 *
 * Refuses: to know vendors' libraries, transfers and regions. A room above embeds a struct plugin_op, plugin_conn,
 * plugin_group or plugin_copy and hears of its end by a callback on the loop thread. Files that others than root and the
 * daemon's user could change are not loaded.
 *
 *   file:        loaded and checked -- open --> available, or not available (UNSUPPORTED) -- close --> unloaded
 *
 *   connection:  created -- offer, connect --> in use -- disconnect --> disconnecting -- on_closed --> destroyed
 *                    `---------------- never offered nor connected --------------------------------------^
 *
 * All calls are made on the loop thread unless a comment says otherwise.
 */
#ifndef DAEMON_PLUGIN_H
#define DAEMON_PLUGIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <uv.h>

#include "backends/rdt_backend.h"
#include "proto/list.h"

struct plugins;
struct plugin;
struct plugin_name;
struct plugin_events;
struct options;
struct options_extra;

/* A report of a plug-in's thread on its way to the loop. Private to plugin_events.c. */
struct plugin_event {
    struct list link;
    void (*deliver)(struct plugin_event *);
};

/* What memory/ keeps for each device; other rooms only read it. */
struct device_memory {
    uint64_t used_bytes, limit_bytes;      /* allocated by the daemon: in use, pooled or being freed; and the limit */
    uint64_t freeing_bytes;                /* of used_bytes */
    uint64_t pooled_bytes, pool_max_bytes; /* of used_bytes: in the device pool; and their limit */
    uint64_t imported_bytes;               /* imported by clients */
    uint64_t awaiting_bytes;               /* of the allocations that wait for room */
    struct list awaiting;                  /* struct device_work.link: those, in order */
    uint64_t pool_hits, pool_misses;       /* allocations that the pool served, and those that it could not */
    unsigned n_regions, n_pooled;          /* regions; blocks in the pool */
};

/* A device of a memory kind. All texts are copies. */
struct memory_device {
    struct memory_kind *kind;
    unsigned index; /* the plug-in's number for it */
    char uuid[65], name[96];
    uint64_t bytes; /* of memory */
    int numa_node;  /* the nearest; -1: unknown, or the machine has one only */
    struct device_memory memory;
};

struct memory_kind {
    struct list link;          /* in plugins_memory_kinds() */
    struct rdt_memory_ops ops; /* a copy; operations that the plug-in lacks are NULL */
    void *instance;
    const char *name; /* lower case, such as "host" */
    const char *path; /* of the .so file */
    bool available;
    char why_not[192];
    bool opened;                   /* open succeeded, and close has not been called */
    struct memory_device *devices; /* [n_devices]; none: the processor can access the memory */
    unsigned n_devices;
    struct plugin_events *events; /* for plugin*.c */
    atomic_uint users;            /* regions and blocks in its memory (memory_kind_use); at 0 it may be unloaded */
    atomic_uint pinned;           /* ranges of host memory that are pinned for it, or about to be */
    _Atomic(char *) why_unpinned; /* why host memory could not be pinned for it, the first time; NULL: it could. Any thread */
    struct plugin *plugin;
};

struct transport {
    struct list link; /* in plugins_transports(), the fastest first */
    struct rdt_transport_ops ops;
    void *instance;
    const char *name; /* lower case; remains valid after an unload, because objects refer to it */
    const char *path;
    const char *version; /* of the vendor's library; "" if unknown */
    uint32_t speed;      /* as it is configured; higher is better */
    bool available;      /* false: open failed, and why_not says why */
    char why_not[192];
    char not_moved[256];             /* the kinds of memory that it could move, but does not here, and why; "": none */
    uint64_t ops_active, bytes_done; /* counted by plugin_op_* */
    bool opened;                     /* open succeeded, and close has not been called */
    bool unloading;                  /* it is being unloaded: nothing new may use it */
    atomic_uint registered;          /* memory that is registered with it, or about to be */
    struct plugins *plugins;
    struct plugin *plugin;
    struct plugin_events *events; /* for plugin*.c */
    struct plugin_name *own_name; /* for plugin_open.c: the name, until the transport is in the list */
};

/* memory_kind_use: loop thread. memory_kind_unuse: any thread. */
static inline void memory_kind_use(struct memory_kind *kind)
{
    atomic_fetch_add(&kind->users, 1);
}

static inline void memory_kind_unuse(struct memory_kind *kind)
{
    atomic_fetch_sub(&kind->users, 1);
}

/* Whether the processor can read and write its memory. */
static inline bool memory_kind_is_host(const struct memory_kind *kind)
{
    return !kind->ops.devices;
}

/* Finds a device by its uuid, ignoring case. "" means the only device. Returns NULL with err if there is
 * none (UNSUPPORTED, with a list of devices), if "" is ambiguous (INVALID), or if the device cannot be
 * used. */
struct memory_device *memory_kind_device(const struct memory_kind *kind, const char *uuid, struct rdt_error *err);

/* The plug-in's present description of the device. Its texts are borrowed from the plug-in. */
struct rdt_device memory_device_now(const struct memory_device *device);

/* A copy to, from or between devices of one kind. The caller fills copy and on_done, and starts it. The
 * pieces and their memory must stay until on_done, which is called exactly once on the loop thread, never
 * inside plugin_copy_start, and may free the struct. If the start fails, on_done is not called. */
struct plugin_copy {
    struct rdt_memory_copy copy;
    void (*on_done)(struct plugin_copy *, enum rdt_status, const char *msg); /* msg is never NULL */
    /* for plugin_memory.c */
    struct memory_kind *kind;
    struct plugin_event done;
    enum rdt_status status;
    char *msg;
};
enum rdt_status plugin_copy_start(struct memory_kind *kind, struct plugin_copy *copy, struct rdt_error *err);

/* One operation of a transport. on_done is called exactly once on the loop thread, never inside the post,
 * and may free the struct. msg is never NULL and valid until on_done returns. */
struct plugin_op {
    struct rdt_op op;
    struct transport *transport;
    void (*on_done)(struct plugin_op *, enum rdt_status, const char *msg);
    /* for plugin_events.c */
    struct plugin_event done;
    enum rdt_status status;
    char *msg;
};

/* One connection of a transport to one peer. Both callbacks are required. They may destroy the connection
 * as far as its state allows. */
struct plugin_conn {
    struct transport *transport;
    void *handle; /* the plug-in's handle; NULL before create */
    /* loop thread; at most once, and not after disconnect */
    void (*on_failed)(struct plugin_conn *, enum rdt_status, const char *msg);
    void (*on_closed)(struct plugin_conn *); /* loop thread; once after disconnect */
    /* loop thread: writes the address of this node's end of the peer link; NULL: nobody knows it */
    void (*address)(const struct plugin_conn *, char *text_p, size_t size);
    /* for plugin_events.c */
    struct plugin_event failed, closed;
    bool has_failed, disconnecting;
    char msg[192];
    enum rdt_status status;
};

/* One rank of a group. All three callbacks are required. They may destroy the group as far as its state
 * allows. */
struct plugin_group {
    struct transport *transport;
    void *handle;                            /* the plug-in's handle; NULL before create */
    void (*on_ready)(struct plugin_group *); /* loop thread; not after close */
    /* loop thread; at most once, and not after close */
    void (*on_failed)(struct plugin_group *, enum rdt_status, const char *msg);
    void (*on_closed)(struct plugin_group *); /* loop thread; once after close */
    /* for plugin_group.c */
    struct plugin_event ready, failed, closed;
    bool has_failed, closing;
    char msg[192];
    enum rdt_status status;
};

/* Loads every rdt_*.so of options->backend_dir in the order of their names (a directory that does not
 * exist is empty), then each file of options->backends. The options are borrowed and must outlive the
 * plugins.
 *
 * An error names the file and the fault: INVALID (not a backend, or a required operation is missing),
 * UNSUPPORTED (another ABI version), EXISTS (a name is taken; names ignore case), DENIED (others than root
 * and the daemon's user may write the file), NOT_FOUND, SYSTEM. INVALID also if a backend section of the
 * configuration has an unknown name or key. A plug-in whose open fails with UNSUPPORTED stays loaded, as
 * not available. */
enum rdt_status plugins_create(uv_loop_t *loop, const struct options *options, struct plugins **plugins_p,
                               struct rdt_error *err);

/* ---- changes while the daemon runs: one at a time (rpc/hotload.h), on a thread of its own ---- */

struct plugin_roles {
    struct plugin *plugin;
    struct memory_kind *kind;    /* NULL: it has no memory kind */
    struct transport *transport; /* NULL: it has no transport */
};

typedef void (*plugins_changed)(void *arg, const struct plugin_roles *roles, const struct rdt_error *err);

/* Loads and opens a file. Beyond the checks of plugins_create, nobody else may be able to write to a
 * directory on its path; and an open that fails is an error, UNSUPPORTED if no role of the backend is
 * available. take_settings: settings for its section, which override the configuration's. Later the loop
 * calls on_changed with the roles, which are then in the lists, or with the error. Returns NO_MEMORY or
 * SYSTEM if the thread cannot be started; on_changed is not called then. */
enum rdt_status plugins_load(struct plugins *plugins, const struct options *options, const char *path,
                             struct options_extra *take_settings, plugins_changed on_changed, void *arg, struct rdt_error *err);

/* Opens a transport that is loaded and not available, and that has no memory kind, once more. If it is available now, the loop
 * calls on_changed with its new roles, which are in the lists in place of the old ones; otherwise with the error, and nothing
 * has changed. The old roles are freed when on_changed returns. Errors as above. */
enum rdt_status plugins_open_again(struct plugins *plugins, const struct options *options, const struct plugin_roles *roles,
                                   plugins_changed on_changed, void *arg, struct rdt_error *err);

/* Finds a loaded backend by its own name, then by that of its transport or memory kind. NOT_FOUND lists
 * the loaded ones. */
enum rdt_status plugins_find(struct plugins *plugins, const char *name, struct plugin_roles *roles_p, struct rdt_error *err);
const char *plugin_name(const struct plugin *plugin);

/* Closes a backend and unmaps its file. Nothing may use it: no connection, registration or memory. The
 * loop calls on_changed when that is done; the roles are freed when it returns. */
enum rdt_status plugins_unload(struct plugins *plugins, const struct plugin_roles *roles, plugins_changed on_changed, void *arg,
                               struct rdt_error *err);

/* Calls on_copied when no copy of a memory kind is running, either now or later from the loop. Nothing may
 * start a copy any more. */
void plugins_await_copies(struct plugins *plugins, void (*on_copied)(void *arg), void *arg);
unsigned plugins_copies(const struct plugins *plugins); /* the number of running copies */

/* Closes all instances, which joins their threads, and then calls on_closed from the loop. All connections
 * must have been destroyed. */
void plugins_close(struct plugins *plugins, void (*on_closed)(void *arg), void *arg);

/* Writes the backends' sections of the configuration, for --dump-config. */
void plugins_dump(const struct plugins *plugins, const struct options *options, FILE *out);

struct list *plugins_memory_kinds(struct plugins *plugins);
struct list *plugins_transports(struct plugins *plugins);
/* "" means host; NULL: no such kind */
struct memory_kind *plugins_memory_kind(struct plugins *plugins, const char *name);
/* ignores case; NULL: no such transport */
struct transport *plugins_transport(struct plugins *plugins, const char *name);

/* The names of all transports, for errors: "ucx, loopback", or "none". */
void plugins_transport_names(const struct plugins *plugins, char *text_p, size_t size);

/* "one", "two" or "one and two", by the operations that it has. */
const char *transport_sides(const struct transport *transport);
bool transport_moves(const struct transport *transport, const char *memory_kind);

/* Connections: the caller fills in the callbacks; create sets transport and handle. disconnect leads to
 * on_closed (a second one does nothing); then the connection can be destroyed. One that was never offered
 * nor connected may be destroyed at once. */
enum rdt_status plugin_conn_create(struct plugin_conn *conn, struct transport *transport, const uint8_t peer_uuid[16],
                                   struct rdt_error *err);
void plugin_conn_disconnect(struct plugin_conn *conn);
void plugin_conn_destroy(struct plugin_conn *conn); /* drops its pending reports */

/* The path of its bytes, in the transport's words; "" if it does not say, or not yet. */
void plugin_conn_describe(const struct plugin_conn *conn, char *text_p, size_t size);

/* What keeps its bytes from passing; as the operation `trouble`. */
enum rdt_status plugin_conn_trouble(const struct plugin_conn *conn, char *text_p, size_t size);

/* The ordered queue for operations on such memory; NULL: operations are not ordered. */
const char *plugin_conn_queue(const struct plugin_conn *conn, const char *memory_kind, const char *device);

/* How many pieces an operation in such memory may have; 1: it takes no lists of pieces, or is not created. */
uint32_t plugin_conn_pieces(const struct plugin_conn *conn, const char *memory_kind);

/* Whether it moves bytes only within groups. */
bool transport_is_grouped(const struct transport *transport);

/* Groups: the caller fills in the callbacks, then creates. close leads to on_closed (a second one does
 * nothing); then the group can be destroyed. One that was never offered nor connected may be destroyed at
 * once. plugin_group_conn fills in conn_p, owned by the caller, for operations with another rank; it must
 * not be disconnected. */
enum rdt_status plugin_group_create(struct plugin_group *group, struct transport *transport, const struct rdt_group_desc *desc,
                                    struct rdt_error *err);
void plugin_group_conn(struct plugin_group *group, uint32_t rank, struct plugin_conn *conn_p);
void plugin_group_close(struct plugin_group *group);
void plugin_group_destroy(struct plugin_group *group); /* drops its pending reports */

/* Operations: the caller fills in op.op (priv is zeroed here) and on_done, then posts. On an error on_done
 * is not called. UNSUPPORTED: the transport has no such operation. */
enum rdt_status plugin_op_send(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err);
enum rdt_status plugin_op_recv(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err);
enum rdt_status plugin_op_read(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err);
/* does nothing if the plug-in cannot cancel */
void plugin_op_cancel(struct plugin_conn *conn, struct plugin_op *op);

#endif
