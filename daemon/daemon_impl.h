/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the daemon, shared by daemon.c, which starts it, and daemon_stop.c, which ends it. */
#ifndef DAEMON_DAEMON_IMPL_H
#define DAEMON_DAEMON_IMPL_H

#include "daemon/config/persons.h"
#include "daemon/conn.h"
#include "daemon/daemon.h"
#include "daemon/directory/directory.h"
#include "daemon/directory/directory_names.h"
#include "daemon/listener.h"
#include "daemon/persist/recovery.h"
#include "daemon/persist/storage.h"
#include "daemon/rpc/rpc.h"

struct daemon_cluster {
    struct node node;    /* this one */
    struct peers *peers; /* NULL: without key_file there is no link to other nodes */
    struct directory directory;
    struct directory_names directory_names;
    struct holds holds;
    struct follows follows;
};

struct daemon_signals {
    uv_signal_t sigterm, sigint, sighup;
};

struct daemon_watchdog { /* systemd's */
    uv_timer_t timer;
    bool runs;
};

struct daemon_trim { /* malloc gives free memory back to the system */
    struct work work;
    struct deadline pause;
    uint64_t took_ns;
    bool runs, pauses, again;
};

struct daemon_idle {
    struct deadline check;
    uint64_t needed_ns; /* when a client, an object or a transfer last needed the daemon */
};

struct daemon_end {
    struct deadline drain_limit, close_limit;
    bool lingering; /* the last transfer has ended, and its bytes may still be on the network */
    bool stopping;  /* the rooms are being closed */
    bool stuck;     /* they did not close in time */
};

struct daemon {
    uv_loop_t loop;
    struct options *options; /* daemon_adopt changes it */
    struct daemon_cluster cluster;
    Rdt__Pb__StatusReply counts; /* what the rooms count for STATUS, each in the fields that rdt.proto describes */
    struct plugins *plugins;
    struct work_pool *pool;
    struct owner_work *owner_work;
    struct deadlines deadlines;
    struct regions regions;
    struct accounts accounts;
    uint64_t open_files; /* the most that this process may have open */
    struct account own;  /* charged for memory that the daemon uses itself */
    struct slabs slabs;
    struct object_table objects;
    struct names names;
    struct recovery recovery;
    struct storage storage;
    struct transfers transfers;
    struct groups groups;
    struct hotload hotload;
    struct shards shards;
    struct rpc rpc;
    struct conns conns;
    struct fresh {           /* what is read again */
        struct list configs; /* of reload.c */
        struct persons persons;
    } fresh;
    struct listener listener;
    struct daemon_signals signals;
    struct daemon_watchdog watchdog;
    struct daemon_trim trim;
    struct daemon_idle idle;
    struct daemon_end end;
};

/* Warns if the control group's limit is less than memory_limit. */
void daemon_check_memory_limit(const struct daemon *daemon);

/* Of rpc.above: see there. arg is the daemon. daemon_on_hangup reads and adopts, too. */
enum rdt_status daemon_read_again(void *arg, void (*on_read)(void *read_arg, struct fresh_config *config), void *read_arg,
                                  struct rdt_error *err);
enum rdt_status daemon_adopt(void *arg, struct fresh_config *config, bool check, options_on_change on_change, void *change_arg,
                             struct rdt_error *err);
void daemon_compare(void *arg, const struct options *fresh, const struct tls_context *key, options_on_change on_change,
                    void *change_arg);
void daemon_on_hangup(uv_signal_t *handle, int number);

/* Sends SIGTERM, SIGINT and SIGHUP, and systemd's watchdog, to the loop. */
void daemon_start_signals(struct daemon *daemon);

/* From now on checks regularly whether options->idle_exit_ns has passed without a client, an object or a transfer, and
 * then stops the daemon. 0: it never does. */
void daemon_start_idle_exit(struct daemon *daemon);

/* Closes every room, in the order that is drawn in daemon_stop.c, without waiting for transfers. The loop ends after that. */
void daemon_close(struct daemon *daemon);

#endif
