/* SPDX-License-Identifier: Apache-2.0 */
/* The node table: which nodes this one knows, and from where.
 *
 * Owns: the lists of the providers, and the table that is merged from them. The first two providers read their source
 * repeatedly on a thread of the daemon, never on the loop; etcd reports changes by itself:
 *
 *   file   the file of the option nodes, as soon as it has changed
 *   dns    the option nodes_dns: all addresses of a host name, or the SRV records of a service
 *   etcd   the option etcd_endpoints: the list of the program rdtd-etcd, which is started here and registers this node in etcd
 *
 *   timer --> thread: read the source --> loop: take the list, merge, peers_set_nodes --> timer
 *   rdtd-etcd --> socket ---------------> loop: take the list, merge, peers_set_nodes
 *
 * Promises: a provider that fails changes nothing. Its last good list stays in force until it succeeds again, and `rdtctl
 * nodes`, the doctor and the metrics show the failure. If two providers name an address, the entry of the first one above
 * counts.
 *
 * Refuses: to dial, and to decide who a node is. peers/ does that; it gets the table.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_DIRECTORY_H
#define DAEMON_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/deadline.h"
#include "daemon/base/node.h"
#include "daemon/base/owner_work.h"
#include "daemon/config/options.h"
#include "daemon/peers/peer.h"
#include "rdt_etcd.pb-c.h"

struct directory_reading;
struct etcd_program;

enum directory_source { DIRECTORY_FILE, DIRECTORY_DNS, DIRECTORY_ETCD, DIRECTORY_SOURCES };

struct directory_provider {
    struct directory *directory;
    enum directory_source source;
    struct node_entry *nodes;          /* the last good list */
    bool active;                       /* the configuration uses it */
    uint64_t confirmed_ns;             /* uv_hrtime() when it last succeeded; 0: never */
    uint64_t errors;                   /* readings that have failed since the start of the daemon */
    char error[192];                   /* why the last reading failed; "": it succeeded */
    uint8_t stamp[48];                 /* file: which file was read last */
    struct deadline next;              /* when it reads again */
    struct directory_reading *reading; /* under way on a thread; NULL: none */
};

struct directory {
    uv_loop_t *loop;
    const struct options *options;
    const struct node *node;
    struct peers *peers; /* NULL: this daemon has no peer link, and the table is empty */
    struct owner_work *owner_work;
    struct deadlines *deadlines;
    struct directory_provider providers[DIRECTORY_SOURCES];
    struct node_entry *table;    /* merged; what peers/ has */
    struct etcd_program *etcd;   /* NULL: it does not run */
    struct list etcd_left;       /* struct etcd_program.link: those that have been told to end */
    Rdt__Pb__EtcdInfo etcd_info; /* of all programs since the start */
    char etcd_endpoint[128];     /* of etcd_info */
    struct deadline etcd_start;  /* when the next program is started */
    int64_t etcd_pause_ns;       /* the last one before a start */
};

/* Starts to read. The fields up to `deadlines` must be set. */
void directory_start(struct directory *directory);

/* After options_adopt: takes over the new options. */
void directory_reload(struct directory *directory);

/* Frees everything. Readings that are under way end by themselves. rdtd-etcd removes this node from etcd, unless it comes back:
 * the next daemon will be the same node. */
void directory_close(struct directory *directory, bool comes_back);

const char *directory_source_name(enum directory_source source);                                    /* "file" */
const char *directory_source_key(enum directory_source source);                                     /* "nodes": the option */
const char *directory_source_from(const struct directory *directory, enum directory_source source); /* its value */

#endif
