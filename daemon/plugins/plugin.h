/* Loads backends, checks their tables, and brings what their threads report to the loop thread.
 *
 * Owns the loaded .so files and one instance of each memory kind and transport. Knows no vendor library and no transfer: an
 * operation is a struct plugin_op that someone above embeds.
 */
#ifndef DAEMON_PLUGIN_H
#define DAEMON_PLUGIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <uv.h>

#include "backends/rdt_backend.h"
#include "daemon/base/list.h"

struct plugins;
struct plugin;
struct plugin_name;
struct plugin_events;
struct options;
struct options_extra;

/* Something that a plug-in's thread reported, on its way to the loop thread. plugin.c's. */
struct plugin_event {
    struct list link;
    void (*deliver)(struct plugin_event *);
};

/* A device of a memory kind. Its texts are ours. */
struct memory_device {
    struct memory_kind *kind;
    unsigned index; /* as the plug-in counts */
    char uuid[65], name[96];
    uint64_t bytes; /* of its memory */
    /* Kept by region*.c: what is allocated there (in use, ready, on its way back), how much may be, what clients have lent. */
    uint64_t used_bytes, limit_bytes, imported_bytes;
    unsigned regions;
    uint64_t leaving_bytes, awaiting_bytes; /* of used_bytes, what is on its way back; what waits for that */
    struct list awaiting;                   /* struct device_work.link, private to region_device.c: first come first */
    /* Kept by device_pool.c: of used_bytes, what nobody uses and is kept; how much may be. */
    uint64_t ready_bytes, ready_max_bytes, ready_hits, ready_misses;
    unsigned n_ready;
};

struct memory_kind {
    struct list link;          /* in plugins_memory_kinds() */
    struct rdt_memory_ops ops; /* our copy, missing operations NULL */
    void *instance;
    const char *name; /* lower case: "host" */
    const char *path; /* of the .so */
    bool available;
    char why_not[192];
    bool opened;       /* there is an instance */
    struct memory_device *devices; /* [n_devices]: its memory lies there, and only the plug-in touches it; none: the processor does */
    unsigned n_devices;
    struct plugin_events *events; /* plugin.c's */
    atomic_uint users; /* regions and blocks of its memory: memory_kind_use. 0: nothing of it is left */
    struct plugin *plugin;
};

struct transport {
    struct list link; /* in plugins_transports(), best speed first */
    struct rdt_transport_ops ops;
    void *instance;
    const char *name; /* lower case; stays valid after its unload, for those who prefer it */
    const char *path;
    const char *version; /* of the vendor library; "" if unknown */
    bool available;      /* false: open failed, why_not says why */
    char why_not[192];
    uint64_t ops_active, bytes_done; /* kept by plugin_op_* */
    bool opened;                     /* there is an instance */
    bool leaving;                    /* it is being unloaded: nobody begins anything with it */
    atomic_uint registered;          /* memory registered with it, or about to be */
    struct plugins *plugins;
    struct plugin *plugin;
    struct plugin_events *events; /* plugin.c's */
    struct plugin_name *kept;     /* likewise */
};

/* Loop thread; unuse from any. */
static inline void memory_kind_use(struct memory_kind *kind)
{
    atomic_fetch_add(&kind->users, 1);
}

static inline void memory_kind_unuse(struct memory_kind *kind)
{
    atomic_fetch_sub(&kind->users, 1);
}

/* The processor reads and writes its memory. */
static inline bool memory_kind_is_host(const struct memory_kind *kind)
{
    return !kind->ops.devices;
}

/* By its uuid, in any case; "": the only one there is. NULL with err (UNSUPPORTED names those there are): none, or it cannot be used. */
struct memory_device *memory_kind_device(const struct memory_kind *kind, const char *uuid, struct rdt_error *err);

/* What the plug-in says of it now; texts are borrowed from it. */
struct rdt_device memory_device_now(const struct memory_device *device);

/* A copy to, from or between devices of one kind. Fill copy and on_done, then start; pieces, and what they name, must stay until on_done,
 * which is called on the loop thread, exactly once, never inside the start. It may free the struct. On error it never runs. */
struct plugin_copy {
    struct rdt_memory_copy copy;
    void (*on_done)(struct plugin_copy *, enum rdt_status, const char *msg); /* msg is never NULL */
    /* plugin_memory.c's */
    struct memory_kind *kind;
    struct plugin_event done;
    enum rdt_status status;
    char *msg;
};
enum rdt_status plugin_copy_start(struct memory_kind *kind, struct plugin_copy *copy, struct rdt_error *err);

/* One operation of a transport. on_done is called on the loop thread, exactly once, never inside the post; msg is never NULL and
 * valid until it returns. It may free the struct. */
struct plugin_op {
    struct rdt_op op;
    struct transport *transport;
    void (*on_done)(struct plugin_op *, enum rdt_status, const char *msg);
    /* plugin.c's */
    struct plugin_event done;
    enum rdt_status status;
    char *msg;
};

/* One transport connection to one peer. Both callbacks are needed and may destroy what they are given, as far as the state
 * of the connection allows it. */
struct plugin_conn {
    struct transport *transport;
    void *handle; /* the plug-in's; NULL before create */
    void (*on_failed)(struct plugin_conn *, enum rdt_status,
                      const char *msg);      /* loop thread, at most once, not after disconnect */
    void (*on_closed)(struct plugin_conn *); /* loop thread, once after disconnect */
    /* plugin.c's */
    struct plugin_event failed, closed;
    bool has_failed, disconnecting;
    char msg[192];
    enum rdt_status status;
};

/* One rank of a group. All three callbacks are needed; they may destroy what they are given where its state allows it. */
struct plugin_group {
    struct transport *transport;
    void *handle;                                                                       /* the plug-in's; NULL before create */
    void (*on_ready)(struct plugin_group *);                                            /* loop thread, not after close */
    void (*on_failed)(struct plugin_group *, enum rdt_status, const char *msg); /* likewise, at most once */
    void (*on_closed)(struct plugin_group *);                                           /* loop thread, once after close */
    /* plugin.c's */
    struct plugin_event ready, failed, closed;
    bool has_failed, closing;
    char msg[192];
    enum rdt_status status;
};

/* Loads every rdt_*.so of options->backend_dir (sorted; a directory that is not there holds none), then each of options->backends.
 * An error names file and fault: INVALID (no backend, a required operation is missing), UNSUPPORTED (another ABI version), EXISTS (a
 * name that is taken; names are case-insensitive), DENIED (others than root and the daemon's user may write it), NOT_FOUND, SYSTEM. A
 * plug-in whose open fails with UNSUPPORTED is kept as not available. Checks the configuration's backend sections against the declared
 * keys: unknown section or key is INVALID. The options must outlive the plugins. */
enum rdt_status plugins_create(uv_loop_t *loop, const struct options *options, struct plugins **plugins_p,
                               struct rdt_error *err);

/* ---- while the daemon runs: one change at a time (hotload.h); what may take long is done on a thread of its own ---- */

struct plugin_parts {
    struct plugin *plugin;
    struct memory_kind *kind;    /* NULL: it has none */
    struct transport *transport; /* likewise */
};

typedef void (*plugins_changed)(void *arg, const struct plugin_parts *parts, const struct rdt_error *err);

/* Loads a file and opens it. Beyond what plugins_create demands, nobody else may be able to write to a directory on its path. An open that
 * fails is an error too, and UNSUPPORTED if nothing of it is available. take_settings: of its own section, over the configuration's. on_changed
 * comes later from the loop: with the parts, which are in the lists now, or the error. NO_MEMORY, SYSTEM: at once. */
enum rdt_status plugins_load(struct plugins *plugins, const struct options *options, const char *path,
                             struct options_extra *take_settings, plugins_changed on_changed, void *arg, struct rdt_error *err);
void options_extra_free(struct options_extra *extras);

/* By the backend's name, its transport's or its memory kind's. NOT_FOUND says which there are. */
enum rdt_status plugins_find(struct plugins *plugins, const char *name, struct plugin_parts *parts_p, struct rdt_error *err);
const char *plugin_name(const struct plugin *plugin);

/* Closes it and unmaps the file: it has no connection, no registration, no memory. on_changed comes when that is done; after it the parts
 * are gone. */
enum rdt_status plugins_unload(struct plugins *plugins, const struct plugin_parts *parts, plugins_changed on_changed, void *arg,
                               struct rdt_error *err);

/* on_copied comes, now or later, from the loop: when no copy of a memory kind runs. Whoever could start one has ended before. */
void plugins_await_copies(struct plugins *plugins, void (*on_copied)(void *arg), void *arg);
unsigned plugins_copies(const struct plugins *plugins); /* that run */

/* Every connection must be destroyed. Closes the instances, which joins their threads; on_closed comes from the loop. */
void plugins_close(struct plugins *plugins, void (*on_closed)(void *arg), void *arg);

/* The backends' own sections of the configuration, as --dump-config shows them. */
void plugins_dump(const struct plugins *plugins, const struct options *options, FILE *out);

struct list *plugins_memory_kinds(struct plugins *plugins);
struct list *plugins_transports(struct plugins *plugins);
struct memory_kind *plugins_memory_kind(struct plugins *plugins, const char *name); /* "" is host; NULL: none */
struct transport *plugins_transport(struct plugins *plugins, const char *name);     /* any case; NULL: none */

/* The names of all transports, for error sentences: "ucx, loopback" or "none". */
void plugins_transport_names(const struct plugins *plugins, char *text_p, size_t size);

/* "one", "two", "one and two": by the operations it has. */
const char *transport_sided(const struct transport *transport);
bool transport_moves(const struct transport *transport, const char *memory_kind);

/* Connections: fill the callbacks, then create, which sets transport and handle. After disconnect (a second one does nothing) comes
 * on_closed; then destroy. One that was never offered nor connected may be destroyed at once. */
enum rdt_status plugin_conn_create(struct plugin_conn *conn, struct transport *transport, const uint8_t peer_uuid[16],
                                   struct rdt_error *err);
void plugin_conn_disconnect(struct plugin_conn *conn);
void plugin_conn_destroy(struct plugin_conn *conn); /* pending events of it are dropped */

/* Which way its bytes go, in the transport's words; "" if it does not say, or not yet. */
void plugin_conn_describe(const struct plugin_conn *conn, char *text_p, size_t size);

/* The ordered queue that operations in such memory stand in; NULL: none. */
const char *plugin_conn_queue(const struct plugin_conn *conn, const char *memory_kind, const char *device);

/* It moves bytes within groups only. */
bool transport_is_grouped(const struct transport *transport);

/* Groups: fill the callbacks, then create. After close (a second one does nothing) comes on_closed; then destroy. One that was never
 * offered nor connected may be destroyed at once. plugin_group_conn: the conn of another rank for the operations below, by a struct that
 * the caller owns and that is nobody's to disconnect. */
enum rdt_status plugin_group_create(struct plugin_group *group, struct transport *transport, const struct rdt_group_desc *desc,
                                    struct rdt_error *err);
void plugin_group_conn(struct plugin_group *group, uint32_t rank, struct plugin_conn *conn_p);
void plugin_group_close(struct plugin_group *group);
void plugin_group_destroy(struct plugin_group *group); /* pending events of it are dropped */

/* One rank's part of a broadcast (rdt_transport_ops.post_broadcast), as the operations below; UNSUPPORTED: it has none of its own. */
enum rdt_status plugin_group_broadcast(struct plugin_group *group, uint32_t root, struct plugin_op *op, struct rdt_error *err);
void plugin_group_cancel_broadcast(struct plugin_group *group, struct plugin_op *op);

/* Operations: fill op.op (priv is zeroed here) and on_done, then post. On error on_done never runs; UNSUPPORTED: the transport has no
 * such operation. */
enum rdt_status plugin_op_send(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err);
enum rdt_status plugin_op_recv(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err);
enum rdt_status plugin_op_read(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err);
void plugin_op_cancel(struct plugin_conn *conn, struct plugin_op *op); /* nothing if the plug-in cannot */

#endif
