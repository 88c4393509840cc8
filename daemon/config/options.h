/* SPDX-License-Identifier: Apache-2.0 */
/* The room config: the daemon's configuration, from the defaults, the configuration file, the environment
 * (RDTD_<KEY>) and the flags, each of which overrides those before it. It owns struct options, the limits that
 * follow from it, and whose user ids are whose (persons.h). It promises that a configuration is checked as a whole
 * before use, and that every fault names its key, value, file and line. It refuses unknown keys. A new key is a row in
 * options_keys.c and a field here: file, environment, flag, --help, rdtd.conf and rdtd.conf(5) come from the row.
 *
 * After the start only options_adopt changes the struct, and only the keys whose rows say so; other threads than the
 * loop's read none of these. */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/base/usage.h"
#include "rdt_status.h"

struct options_extra { /* a key of a backend's section; the backend checks it when it is loaded */
    char *section, *key, *value;
    int line;
    struct options_extra *next;
};

struct node_entry { /* a line of the nodes file: NAME ADDRESS:PORT [UUID] */
    char name[65];
    char address[65];
    uint8_t uuid[16]; /* all zero: any */
    uint8_t source;   /* of the node table: enum directory_source, which named it */
    struct node_entry *next;
};

#define OPTIONS_PINGS 5u /* of a silent peer, in one peer_timeout */

enum options_dump {
    OPTIONS_DUMP_NONE,
    OPTIONS_DUMP_EFFECTIVE, /* --dump-config: the values that would be used, as a configuration file */
    /* --dump-config=template: the defaults, every key commented out: the rdtd.conf that is installed */
    OPTIONS_DUMP_TEMPLATE,
    OPTIONS_DUMP_MAN, /* --dump-config=man: the scdoc source of rdtd.conf(5) */
};

enum option_source { OPTION_FROM_DEFAULT, OPTION_FROM_FILE, OPTION_FROM_ENVIRONMENT, OPTION_FROM_FLAG };

struct option_origin { /* of a value */
    enum option_source source;
    int line; /* of the file */
};

#define OPTIONS_MAX_KEYS 128u

struct options {
    /* [daemon] */
    char *socket;                             /* "/run/rdtd/rdtd.sock" */
    char *socket_mode;                        /* "0666": the daemon checks the credentials of callers itself */
    char *tenant;                             /* "": the unnamed tenant */
    char *state_dir;                          /* "/var/lib/rdtd": contains the node's uuid; "": a new uuid at each start */
    char *keeper;                             /* "": no session or object survives the daemon; the socket of rdtd-keeper */
    char *storage_dir;                        /* "": objects are not stored */
    uint64_t storage_max_bytes;               /* 0: what its file system has room for */
    uint64_t restart_grace_ns;                /* 10s */
    char *backend_dir;                        /* compiled-in $(libdir)/rdtd */
    char *backends;                           /* further .so files, comma-separated; --backend may be repeated */
    char *log_level;                          /* "info" */
    bool allow_overflow_uid;                  /* no: unmapped uids are refused */
    uint64_t memory_limit_bytes;              /* 0: half of the smaller of RAM and the cgroup's limit */
    uint64_t device_limit_bytes;              /* on each device; 0: nine tenths of what it has */
    uint64_t device_pool_max_bytes;           /* of unused memory; 0: a quarter of device_limit */
    uint64_t cache_max_bytes;                 /* of one client; 0: half of memory_limit */
    uint64_t cache_limit_bytes;               /* of evictable objects; 0: memory_limit */
    uint64_t owner_cache_limit_bytes;         /* of those of one user; 0: cache_limit */
    uint64_t cache_storage_limit_bytes;       /* of their files; 0: evicted objects end */
    uint64_t owner_cache_storage_limit_bytes; /* 0: cache_storage_limit */
    uint64_t pool_idle_ns;                    /* 60s: unused memory of the pool and the cache is freed after this time */
    uint32_t max_clients;                     /* 4096 */
    uint32_t max_objects;                     /* 1048576 */
    uint32_t worker_threads;                  /* 2 */
    uint64_t busy_poll_ns;                    /* 200us: the longest polling before a sleep; 0: never */
    uint64_t detached_max_ns;                 /* 24h: the key detached_ttl_max */
    uint64_t drain_timeout_ns;                /* 10s: how long SIGTERM waits for transfers */
    uint64_t idle_exit_ns;                    /* 0: never; the daemon exits after this time without client and object */
    /* [limits] */
    uint64_t client_max[USAGE_COUNT], owner_max[USAGE_COUNT]; /* 0: see limits.h */
    uint32_t version_max_tensors;                             /* 1000000 */
    /* [network] */
    char *listen;                         /* "": no peer link; "ADDR:PORT", port 0 is any */
    char *advertise;                      /* "host:port" put into refs; "" derived from listen */
    char *nodes;                          /* nodes file; "" none */
    char *nodes_dns;                      /* "HOST:PORT" or "_SERVICE._tcp.NAME"; "" none */
    char *etcd_endpoints;                 /* "https://HOST:PORT", separated by commas; "" none */
    char *etcd_prefix;                    /* of all keys there, without a slash at its end */
    char *etcd_ca, *etcd_cert, *etcd_key; /* paths; "" none */
    char *etcd_user;                      /* "" none */
    char *etcd_password_file;
    uint64_t etcd_ttl_ns;
    char *names;                          /* "nodes"; or "local": names of other nodes need an address */
    char *key_file;                       /* pre-shared key of the peer link; "" none */
    char *peer_cert, *peer_key, *peer_ca; /* certificates of the peer link; "" none. Without these and a key: no peers */
    char *peer_crl;                       /* revoked certificates; "" none */
    char *peer_allow;                     /* names of nodes, patterns separated by commas; "" all */
    char *share_tenants;                  /* tenants for which peers may act, comma-separated; "*" all; "" the unnamed one */
    char *trusted_pickles;                /* nodes whose pickles clients may load unasked, comma-separated; "" none */
    char *dial;                           /* "any"; or "listed" */
    bool trusted_network;                 /* no */
    char *interfaces;                     /* for data, comma-separated; "" any */
    uint64_t peer_timeout_ns;    /* 5s without an answer: the peer is lost; it is pinged OPTIONS_PINGS times in that period */
    uint64_t connect_timeout_ns; /* 5s */
    uint64_t backoff_max_ns;     /* 30s */
    uint64_t hold_grace_ns;      /* 30s */
    /* [transfer] */
    uint64_t chunk_bytes;        /* 4 MiB */
    uint32_t chunks_in_flight;   /* 4 per peer and direction */
    uint64_t quiesce_grace_ns;   /* 2s: after an abort, before the connection is torn down */
    uint64_t stall_timeout_ns;   /* 30s without progress fails a transfer */
    uint64_t replicas_max_bytes; /* 4 GiB of replicas of other nodes' snapshots; 0: none */
    uint64_t fanout_min_bytes;   /* 4 MiB: larger snapshots, or as much to send, are also fetched from replicas; 0: never */

    struct options_extra *extras;
    struct node_entry *node_list;     /* from the nodes file */
    bool check_config, version, help; /* flags only */
    enum options_dump dump_config;    /* a flag only */
    int argc;
    char **argv;  /* copies, for options_load_again */
    char *config; /* the file that was read: --config, else the usual one if there is one; "" none */
    struct option_origin origins[OPTIONS_MAX_KEYS]; /* where the values of the keys come from, in the order of their rows */
};

/* Reads flags, environment and file. With --help, --version and --dump-config=template or =man the other sources
 * are ignored. INVALID: err names key, value, file and line, and what would be right; if there are several faults,
 * all are printed to stderr first. *options_p is written on success, and needs options_fini; with --check-config it is written
 * after faults, too, so that the sections of backends can be checked. */
enum rdt_status options_load(int argc, char **argv, struct options *options_p, struct rdt_error *err);
void options_fini(struct options *options);

bool options_have_peers(const struct options *options); /* there is a key or a certificate for the peer link */

/* Frees a list of keys of backends. NULL: nothing. */
void options_extra_free(struct options_extra *extras);

/* ---- reloading ---- */

/* Reads all sources again, with the flags of the start. Nothing is printed: err is the first fault, and says how many there
 * are. */
enum rdt_status options_load_again(const struct options *options, struct options *fresh_p, struct rdt_error *err);

/* A value that differs. reloads: options_adopt takes it over; if not, it is for the next start. The texts are borrowed, and
 * written as in the file; those of a key that a source no longer has are "". */
typedef void (*options_on_change)(void *arg, const char *section, const char *key, const char *before, const char *after,
                                  bool reloads);

/* Calls on_change for each key, those of backends included, and for the content of the nodes file. */
void options_compare(const struct options *now, const struct options *fresh, options_on_change on_change, void *arg);

/* Moves the nodes and the values of all keys that reload to `options`. fresh still needs options_fini. */
void options_adopt(struct options *options, struct options *fresh);

/* ---- what is in force ---- */

struct option_value {
    const char *section, *key, *value; /* as in the file; value may be "" */
    const char *source;                /* "default", "file", "environment", "flag" */
    const char *where;                 /* "PATH:LINE", "RDTD_KEY", "--key", "" */
};

/* Whether a file, a variable or a flag has set this key of the daemon's own. */
bool options_is_set(const struct options *options, const char *key);

/* Calls on_value for each key, those of backends included. The texts are borrowed for the call. */
void options_each(const struct options *options, void (*on_value)(void *arg, const struct option_value *value), void *arg);

/* The most heap of all clients together: a quarter of the smaller of RAM and the limit of the daemon's control group. */
uint64_t options_heap_limit(void);

/* The value of memory_limit or, for 0, half of the smaller of RAM and the limit of the daemon's control group
 * (version 1 or 2, and the groups above it). */
uint64_t options_effective_memory_limit(const struct options *options);

/* The value of cache_max or, for 0, half of memory_limit, which is in effect as memory_limit here: whatever has room while the
 * version before it still lives can be used again. Bytes. */
uint64_t options_effective_cache_max(const struct options *options, uint64_t memory_limit);

/* Prints what `dump` says, in full, except that a backend's own section of OPTIONS_DUMP_EFFECTIVE comes from
 * plugins_dump. options is used for OPTIONS_DUMP_EFFECTIVE only, and may be NULL otherwise. */
void options_dump(const struct options *options, enum options_dump dump, FILE *out);
void options_help(FILE *out);

/* Collects faults, so that the writer of a configuration sees all of them at once: keeps the first one, and prints all as soon
 * as there is a second. */
struct option_faults {
    unsigned n;
    bool quiet; /* prints none */
    struct rdt_error first;
};

/* Adds a fault: `why`, preceded by the formatted place if that is not empty. */
void option_fault(struct option_faults *faults, const struct rdt_error *why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns OK if there is no fault, else the first one, with the number of all. err may be NULL. */
enum rdt_status option_faults_end(const struct option_faults *faults, struct rdt_error *err);

/* Reads a nodes file: lines "NAME ADDRESS:PORT [UUID]", blank lines and '#' comments. INVALID names the line. The
 * caller frees the list. */
enum rdt_status options_read_nodes(const char *path, struct node_entry **nodes_p, struct rdt_error *err);

void options_free_nodes(struct node_entry *nodes); /* NULL: nothing */
bool options_same_nodes(const struct node_entry *a, const struct node_entry *b);

/* Splits "host:port"; an IPv6 address is in brackets. host_p has 65 bytes. INVALID. */
enum rdt_status options_split_address(const char *text, char *host_p, uint16_t *port_p, struct rdt_error *err);

#endif
