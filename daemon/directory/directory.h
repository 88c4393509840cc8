/* SPDX-License-Identifier: Apache-2.0 */
/* The node table: which nodes this one knows, and from where.
 *
 * Owns: the lists of the providers, and the table that is merged from them. A provider reads its source again and again on a
 * thread of the daemon, never on the loop:
 *
 *   file   the file of the option nodes, as soon as it has changed
 *   dns    the option nodes_dns: all addresses of a host name, or the SRV records of a service
 *
 *   timer --> thread: read the source --> loop: take the list, merge, peers_set_nodes --> timer
 *
 * Promises: a provider that fails changes nothing. Its last good list counts until it succeeds again, and the failure is
 * shown by `rdtctl nodes`, the doctor and the metrics. An address that two providers name is that of the first provider above.
 *
 * Refuses: to dial, and to say who a node is. That is for peers/, which gets the table.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_DIRECTORY_H
#define DAEMON_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/deadline.h"
#include "daemon/base/owner_work.h"
#include "daemon/config/options.h"
#include "daemon/peers/peer.h"

struct directory_reading;

enum directory_source { DIRECTORY_FILE, DIRECTORY_DNS, DIRECTORY_SOURCES };

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
    const struct options *options;
    struct peers *peers; /* NULL: this daemon has no peer link, and the table is empty */
    struct owner_work *owner_work;
    struct deadlines *deadlines;
    struct directory_provider providers[DIRECTORY_SOURCES];
    struct node_entry *table; /* merged; what peers/ has */
};

/* Begins to read. The fields up to `deadlines` must be set. */
void directory_start(struct directory *directory);

/* After options_adopt: takes over the new options. */
void directory_reload(struct directory *directory);

/* Frees everything. Readings that are under way end by themselves. */
void directory_close(struct directory *directory);

const char *directory_source_name(enum directory_source source); /* "file" */

/* Which provider lists the peer; DIRECTORY_SOURCES: none. */
enum directory_source directory_source_of(const struct directory *directory, const struct peer *peer);

#endif
