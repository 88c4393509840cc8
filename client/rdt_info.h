/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon knows, for programs: objects and who holds them, published names, nodes, and the state of the daemon itself.
 * rdtctl prints the same.
 *
 *     static bool print(void *arg, const struct rdt_name_row *row)
 *     {
 *         printf("%s %" PRIu64 "\n", row->name, row->version);
 *         return true;
 *     }
 *     ...
 *     rdt_each_name(c, NULL, print, NULL, &err);
 *
 * A list calls its function once for each row, in the calling thread, before the list returns.
 * - A row, and every string and array in it, is borrowed: it is valid until the function returns. Strings are never NULL; a
 *   struct rdt_ref may be copied and kept.
 * - The function returns true to go on, and false to end the list, which then returns RDT_OK. It may call librdt, also on the
 *   same connection: no lock is held.
 * - Rows come from the daemon in pages. The tables may change between two pages, so a row can be missing or appear twice, but
 *   its content is right.
 * - Rows grow at their end in later versions. A program reads the members that it was compiled with, so it must not copy a row
 *   by sizeof into something of another version's.
 * - Times are in nanoseconds, sizes in bytes. Ids and names are text as rdtctl shows it: a byte that does not print, a space
 *   and "%" are %XX.
 * - A session sees what belongs to its owner (uid and tenant), and what is visible to it. Root and the daemon's own user see
 *   everything. Every session sees all nodes and the counters of the daemon.
 * - Errors of each function here: INVALID (a NULL argument; an options struct with an unknown filter), DISCONNECTED, FORKED,
 *   NO_MEMORY, PROTOCOL (the daemon's answer cannot be read), TIMED_OUT (no answer within a minute). The functions list
 *   further ones.
 */
#ifndef RDT_INFO_H
#define RDT_INFO_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- objects ---- */

struct rdt_object_row {
    struct rdt_stat stat;           /* as rdt_stat writes it; stat.ref has the owner's uid and tenant */
    const char *id;                 /* as rdtctl shows it */
    const char *transport;          /* preferred between nodes; "": none */
    enum rdt_visibility visibility; /* who may fetch it */
    uint64_t producer;              /* the session that put it, as rdtctl shows it; 0: nobody has put it yet */
};

struct rdt_list_options {
    size_t struct_size;
    const char *prefix; /* only ids, or names, that begin with it; NULL: all */
    const char *state;  /* objects: "awaited", "filling", "live" or "draining"; NULL: all */
    uint64_t client;    /* objects: only those that this session has put; 0: all */
    uint64_t limit;     /* at most so many rows; 0: all */
};

/* Lists the objects of this node, including those that somebody waits for. options may be NULL. */
enum rdt_status rdt_each_object(rdt *rdt, const struct rdt_list_options *options,
                                bool (*each)(void *arg, const struct rdt_object_row *row), void *arg, struct rdt_error *err);

/* A holder of an object, with the number of its holds. */
struct rdt_holder {
    /* "producer"             the client that put it and has not freed it
     * "detached"             no client: the object is detached, and its producer has ended
     * "reader"               a client of this node that has fetched it
     * "hold"                 a client of this node that holds it by rdt_hold
     * "node"                 another node, for its clients that hold it by rdt_hold
     * "name"                 a published name whose newest version it is
     * "in transit"           refs that are on their way to another process (rdt_hand_on), and leases (rdt_lookup)
     * "transfer"             transfers to other nodes
     * "pins"                 not holds: transfers that still touch its memory
     * "replica", "replica being filled"   no hold: a node that has, or is receiving, a replica
     * "others"               the holds that no other row counts: more than fit, or of clients that this session may not see */
    const char *kind;
    uint32_t count;          /* of holds; 0 for a replica */
    uint64_t client;         /* "producer", "detached", "reader", "hold": the session, as rdtctl shows it; 0: none */
    const char *client_name; /* of that session: rdt_connect_options.name; "": it has none, or has ended */
    int32_t pid;             /* of that session's process; 0: unknown */
    uint32_t uid;            /* of that session; meaningless if pid is 0 */
    const char *node;        /* "node", "replica": the node's name in the nodes file, or its address; else "" */
    const char *node_uuid;   /* the same node's uuid in hex; else "" */
    const char *name;        /* "name": the published name; else "" */
    uint64_t version;        /* of that name */
    const char *sentence;    /* the row as a sentence: client 7 "eval" (pid 4211) reads it */
};

/* Describes the object of ref, or the object of a name's newest version, in *stat_p, which may be NULL, and calls `each` for
 * every holder, on the object's node or another. The object's owner, root and the user of the object's daemon see all
 * holders, but at most 32 rows. Another session sees the clients of its own uid and tenant, and the number of other holds.
 * All rows show the same moment. Errors also: those of rdt_stat. */
enum rdt_status rdt_holders(rdt *rdt, const struct rdt_ref *ref, struct rdt_stat *stat_p,
                            bool (*each)(void *arg, const struct rdt_holder *holder), void *arg, struct rdt_error *err);

/* ---- published names ---- */

struct rdt_name_row {
    const char *name;      /* as rdtctl shows it */
    struct rdt_ref object; /* of the newest version; id_bytes is 0 if that was freed by force */
    uint64_t version;      /* the newest */
    uint64_t bytes;        /* of that version */
    uint32_t waiters;      /* requests that wait for a later version */
    uint32_t uid;          /* with tenant: the owner */
    const char *tenant;
    enum rdt_visibility visibility; /* who may fetch by the name */
    int64_t age_ns;                 /* of the newest version */
    uint64_t lease_client;          /* the name ends with this session (rdt_publish_options.lease); 0: with none */
    int64_t ttl_left_ns;            /* the name ends after that time unless it is published again; -1: it does not */
};

/* Lists the names that are published on this node. The options state and client do not apply to names. */
enum rdt_status rdt_each_name(rdt *rdt, const struct rdt_list_options *options,
                              bool (*each)(void *arg, const struct rdt_name_row *row), void *arg, struct rdt_error *err);

/* ---- nodes ---- */

struct rdt_node_transport {
    const char *name;
    bool usable;      /* the two nodes can use it with each other */
    const char *path; /* usable: the path of its bytes in its own words ("tcp/eth0"), "" until it is known */
    const char *why;  /* not usable: why */
};

struct rdt_node_row {
    const char *uuid;       /* in hex; "": the node was never reached */
    const char *boot_id;    /* in hex: changes at each start of its daemon */
    const char *name;       /* in the nodes file, else the address */
    const char *address;    /* "host:port" of its peer link */
    const char *state;      /* "idle", "connecting", "up", "backoff": as rdtctl peers shows it */
    const char *version;    /* of its daemon; "": never reached */
    int64_t rtt_ns;         /* of the latest ping; 0: none was answered yet */
    int64_t since_ns;       /* how long it has been in this state */
    int64_t retry_in_ns;    /* when the next attempt to connect begins; 0: none is due */
    uint32_t transfers_in;  /* running, from that node */
    uint32_t transfers_out; /* running, to that node */
    uint64_t bytes_in;      /* moved so far */
    uint64_t bytes_out;
    uint64_t fell_back;                          /* transfers from there that did not take the fastest common transport */
    const char *last_error;                      /* why there is no link; "" while the state is "up" */
    const struct rdt_node_transport *transports; /* [n_transports], usable ones first, best first */
    size_t n_transports;
    const char *identity; /* the URI or DNS name in the node's certificate; "": the link uses the pre-shared key */
};

/* Lists the other nodes that this node's daemon knows. A daemon without a peer link knows none. */
enum rdt_status rdt_each_node(rdt *rdt, bool (*each)(void *arg, const struct rdt_node_row *row), void *arg,
                              struct rdt_error *err);

/* ---- the daemon ---- */

struct rdt_daemon_status {
    size_t struct_size; /* RDT_INIT */
    char version[32];
    char state[16];   /* "serving"; "draining": it takes no new work */
    char address[65]; /* of its peer link; "": none */
    char socket[108];
    int32_t pid;
    int64_t uptime_ns;
    uint32_t clients;
    uint64_t objects, regions;
    uint64_t memory_bytes;            /* host memory in use, orphaned memory included */
    uint64_t memory_limit_bytes;      /* memory_limit */
    uint64_t pool_bytes;              /* free pool: memory beside memory_bytes, under the same limit */
    uint64_t cached_bytes;            /* region cache: the same */
    uint64_t orphaned_bytes;          /* freed memory that a client still keeps open or mapped */
    uint64_t replicas, replica_bytes; /* of other nodes' snapshots */
    uint32_t nodes_up, nodes_known;   /* other nodes */
    uint32_t transfers_active;
    uint64_t transfers_done, transfers_failed;         /* since the daemon started, like all counters below */
    uint64_t transfers_cancelled, transfers_timed_out; /* not failures: their readers cancelled, timed out, or ended */
    uint64_t bytes_in, bytes_out, bytes_local;         /* from other nodes, to other nodes, within this one */
    uint64_t fetches_joined;                           /* fetches that joined a running transfer */
    uint64_t fetches_from_replicas;                    /* fetches that a replica on this node served */
    uint64_t redirected;                               /* pulls of other nodes that were redirected to a replica */
    uint64_t fell_back;                                /* transfers that did not take the fastest common transport */
    char node[33], boot_id[33];                        /* in hex, as in struct rdt_node_row */
    char backends[512];                                /* the names of the loaded backends, with blanks between them */
    uint64_t pool_hits, pool_misses;                   /* allocations that the free pool served, and did not serve */
    uint64_t cache_hits;                               /* allocations that the region cache served */
    uint64_t busy_polls;        /* waits for a message of a client or node in which rdtd polled before it slept */
    uint64_t busy_polls_missed; /* of those, the ones in which no message came while it polled */
    bool keeper_up;             /* rdtd-keeper is connected, and the next three survive a restart of the daemon */
    uint64_t kept_objects, kept_names, kept_bytes;
    uint64_t restored_objects; /* objects that the daemon restored from the keeper when it started */
    uint64_t unkept_objects;   /* objects and names that should survive, but were lost at the start or cannot be kept */
    /* Sessions that survive a restart, and their holds. Of the sessions of an earlier daemon: those that were restored at the
     * start, those whose clients have come back, and those that still wait for their clients. */
    uint64_t kept_sessions, kept_holds, restored_sessions, resumed_sessions, waiting_sessions;
    int64_t certificate_expires_s; /* when this node's certificate expires, in seconds since 1970; 0: it has none */
    int64_t crl_expires_s;         /* the same for its list of revoked certificates */
    /* The content of the storage directory (rdt_store): objects, names, and bytes of the files of objects. */
    uint64_t stored_objects, stored_names, stored_bytes;
    uint64_t stores_done, stores_bytes;      /* objects that were stored since the start, and the bytes written for them */
    uint64_t stores_failed;                  /* objects and versions of names that could not be stored since the start */
    uint64_t storage_restored;               /* objects that the daemon restored from there when it started */
    uint64_t storage_bad_files;              /* files there that the daemon could not use */
    uint64_t spilled_objects, spilled_bytes; /* stored objects that gave up their memory for their files, since the start */
    char storage_dir[1024];                  /* "": nothing is stored; a longer path is cut off */
    uint64_t redirected_again;               /* of `redirected`, pulls that came back from another replica */
    uint64_t shard_versions, shard_failures; /* versions of many parts that became complete here, and that failed */
    uint64_t slow_readers;                   /* reports that a node that reads a snapshot from this one is slow */
    uint64_t shard_pending;                  /* versions of many parts that still wait for parts here */
    uint64_t log_lines_dropped;              /* lines of its log that its standard error did not take */
    /* files of stored objects that were compared with their checksums: right, changed; and restored files without any */
    uint64_t storage_checked, storage_damaged, storage_without_sums;
    /* snapshots of other nodes whose bytes were right, wrong, and kept without a checksum */
    uint64_t replicas_checked, replicas_damaged, replicas_unchecked;
    uint64_t freeing_bytes;         /* of memory_bytes: on its way back to the system */
    uint64_t storage_damaged_bytes; /* of files that were set aside because they are damaged; no user is charged for them */
    uint64_t followers;             /* of names (rdt_follow.h) */
    uint64_t followed_bytes;        /* of versions that are kept for followers */
    uint64_t followed_versions;     /* that were whole on this node for followers */
    uint64_t followed_moved;        /* bytes of these that came from other nodes */
    uint64_t follow_commits, follow_skipped; /* versions that followers have committed, and have skipped */
    /* snapshots of other nodes that were made here of an earlier one and a delta; deltas that failed, so that the whole was
     * moved; bytes that the deltas have spared */
    uint64_t replicas_by_delta, deltas_failed, delta_bytes_spared;
    uint64_t evictable_objects;    /* in the cache (RDT_PUT_EVICTABLE) */
    uint64_t evictable_bytes;      /* their memory and bookkeeping */
    uint64_t evictable_idle_bytes; /* of these, those that could be evicted now */
    /* ids that users of the cache asked for: found there, and not found. Each key of rdt_lookup counts, and each fetch, hold or
     * wait by an id without a generation; rdt_exists does not, nor does a fetch of what a lookup has found */
    uint64_t evictable_hits, evictable_misses;
    uint64_t evictions, evicted_bytes;                   /* objects that were evicted */
    uint64_t evictable_files, evictable_file_bytes;      /* of objects of the cache, in storage_dir */
    uint64_t evictable_spilled, evictable_spilled_bytes; /* objects that have left memory for a file, and that memory */
    uint64_t evictable_file_hits;                        /* of evictable_hits: objects that were in a file only */
    /* evicted objects that have left for no file: the disk did not have them in time; it or a limit had no room; they are
     * small */
    uint64_t evictable_unspilled_late, evictable_unspilled_failed, evictable_unspilled_small;
    uint64_t evictable_far_hits; /* ids that look-ups found on other nodes, and not on this one */
};

/* Writes the daemon's state: as many of the members as fit into status_p->struct_size. */
enum rdt_status rdt_daemon_status(rdt *rdt, struct rdt_daemon_status *status_p, struct rdt_error *err);

/* Writes the same as JSON, with every field that rdtctl --json shows: what is "status", "metrics" (further counters), "cache"
 * (what users have in the cache), "doctor" (the checks that the daemon makes), "nodes" (the node table) or "config" (the
 * configuration that is in force, and where each value comes from; for root and the daemon's own user), an object; "objects",
 * "names", "peers" (the other nodes) or "groups", an array of the rows that options (NULL: all) let through; or, with a ref,
 * "stat", an object with its holders. ref is NULL for the others. A number above 2^63 - 1 is a string. The caller frees
 * *text_p with free(). Errors also: INVALID (what is none of these), those of rdt_stat. */
enum rdt_status rdt_info_json(rdt *rdt, const char *what, const struct rdt_ref *ref, const struct rdt_list_options *options,
                              char **text_p, struct rdt_error *err);

/* Sends a request that has no tensors and waits for nobody, and writes its reply as JSON. name is "end_client",
 * "cache_flush", "log_level", "reload" or "drain", or one of the requests that rdt_info_json knows as an object. fields are
 * texts "field=value", ended by NULL (NULL: none), which proto/rdt.proto describes: a number has decimal digits, a truth is
 * true or false. Example: {"client=5", NULL} for "end_client". The caller frees *text_p with free(). Errors: INVALID (no such
 * request or field, a value that does not fit it), DENIED (the last three are for root and the daemon's own user), those of
 * the request. */
enum rdt_status rdt_request_json(rdt *rdt, const char *name, const char *const *fields, char **text_p, struct rdt_error *err);

/* Evicts the objects of the cache (RDT_PUT_EVICTABLE) that nobody holds: this user's, or with `all` those of all users, which
 * only root and the daemon's own user may. Returns when they are gone. n_p and bytes_p, may be NULL, receive how many there
 * were, and their memory. */
enum rdt_status rdt_flush_cache(rdt *rdt, bool all, uint64_t *n_p, uint64_t *bytes_p, struct rdt_error *err);

/* Ends a session of the same user by its number, which rdtctl clients and rdt_node_info show: what it holds is released, and
 * its process goes on; its later calls fail with DISCONNECTED. Root and the daemon's own user may end every session. Errors:
 * NOT_FOUND (there is no such session, or it is another user's), INVALID (it is this one: call rdt_close). */
enum rdt_status rdt_end_client(rdt *rdt, uint64_t session, struct rdt_error *err);

enum rdt_metrics_format {
    RDT_METRICS_OPENMETRICS = 0, /* OpenMetrics 1.0, application/openmetrics-text */
    RDT_METRICS_PROMETHEUS = 1,  /* Prometheus's text format 0.0.4, which node_exporter's textfile collector reads */
};

/* Writes the daemon's counters, gauges and histograms as text; rdtd-exporter(8) lists them. The caller frees *text_p with
 * free(). Unprivileged sessions get the usage of their own owner only. A scraper should ask every few seconds at most: the
 * text of a node with 64 owners and 256 peers has about 200 KiB. */
enum rdt_status rdt_metrics(rdt *rdt, enum rdt_metrics_format format, char **text_p, struct rdt_error *err);

#ifdef __cplusplus
}
#endif
#endif
