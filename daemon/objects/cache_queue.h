/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the evictable objects of one owner go: a segmented LRU (why: tests/bench/DECISIONS.md).
 *
 *   add ─► PROBATION ── used again ─► PROTECTED ◄── used again ── LEAVING
 *              │  ▲                       │                          ▲
 *              │  └── more than half ─────┘  the one that was used   │
 *              │                             least recently          │ cache_queue_leave: it is being written
 *              ├─────────────────────────────────────────────────────┘ to a file, before its memory is wanted
 *              ▼
 *           victim (of LEAVING first; of PROTECTED, when PROBATION is empty)
 *
 * So objects that are used once, such as those of a scan, go before all that were used twice. There is such a pair of PROBATION
 * and PROTECTED for each priority, and as long as a lower one has an entry, that one is the victim.
 *
 * Where evicted objects are stored, SPILLED are those that are in a file only, in the order of their last use.
 *
 * Each call takes constant time, except that a use may move several objects back to PROBATION, each of which an earlier use has
 * moved away.
 *
 * Loop thread only. */
#ifndef DAEMON_CACHE_QUEUE_H
#define DAEMON_CACHE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/list.h"
#include "rdt_put_flags.h"

#define CACHE_PRIORITIES (RDT_PRIORITY_MOST + 1u)

enum cache_segment { CACHE_PROBATION, CACHE_PROTECTED, CACHE_SEGMENTS, CACHE_LEAVING = CACHE_SEGMENTS, CACHE_SPILLED };

struct cache_entry { /* embedded by its user */
    struct list link;
    uint64_t bytes;
    uint8_t segment;  /* enum cache_segment; stays while the entry is out of the queue */
    uint8_t priority; /* below CACHE_PRIORITIES; never changes */
    bool writing;     /* LEAVING: its file is being written, so it is a victim only if there is no other */
};

struct cache_class {
    struct list segments[CACHE_SEGMENTS]; /* struct cache_entry.link, the one that was used least recently first */
    uint64_t bytes[CACHE_SEGMENTS];
};

struct cache_queue {
    struct cache_class classes[CACHE_PRIORITIES];
    struct list leaving, spilled; /* struct cache_entry.link */
    uint64_t leaving_bytes;
    uint64_t n;
};

void cache_queue_init(struct cache_queue *queue);

/* Adds an entry as the one of its segment that was used last. used: somebody has used it since it was added first. */
void cache_queue_add(struct cache_queue *queue, struct cache_entry *entry, bool used);
void cache_queue_remove(struct cache_queue *queue, struct cache_entry *entry);

/* The entry is LEAVING from now on, behind the others that are. */
void cache_queue_leave(struct cache_queue *queue, struct cache_entry *entry);

/* These stay in the queue. NULL: there is none. */
struct cache_entry *cache_queue_victim(const struct cache_queue *queue);  /* the next one to be evicted; not of SPILLED */
struct cache_entry *cache_queue_next(const struct cache_queue *queue);    /* the next one behind those that are LEAVING */
struct cache_entry *cache_queue_spilled(const struct cache_queue *queue); /* the first of SPILLED */

#endif
