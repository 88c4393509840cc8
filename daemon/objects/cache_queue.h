/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the evictable objects of one owner go: a segmented LRU (why: tests/bench/DECISIONS.md).
 *
 *   add ─► PROBATION ── used again ─► PROTECTED
 *              │  ▲                       │
 *              │  └── more than half ─────┘  the one that was used least recently
 *              ▼
 *           victim (of PROTECTED, when PROBATION is empty)
 *
 * So objects that are used once, such as those of a scan, go before all that were used twice. There is such a pair for each
 * priority, and as long as a lower one has an entry, that one is the victim. Each call takes constant time, except that a use
 * may move several objects back to PROBATION, each of which an earlier use has moved away.
 *
 * Loop thread only. */
#ifndef DAEMON_CACHE_QUEUE_H
#define DAEMON_CACHE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/list.h"
#include "rdt_put_flags.h"

#define CACHE_PRIORITIES (RDT_PRIORITY_MOST + 1u)

enum cache_segment { CACHE_PROBATION, CACHE_PROTECTED, CACHE_SEGMENTS };

struct cache_entry { /* embedded by its user */
    struct list link;
    uint64_t bytes;
    uint8_t segment;  /* enum cache_segment; stays while the entry is out of the queue */
    uint8_t priority; /* below CACHE_PRIORITIES; never changes */
};

struct cache_class {
    struct list segments[CACHE_SEGMENTS]; /* struct cache_entry.link, the one that was used least recently first */
    uint64_t bytes[CACHE_SEGMENTS];
};

struct cache_queue {
    struct cache_class classes[CACHE_PRIORITIES];
    uint64_t n;
};

void cache_queue_init(struct cache_queue *queue);

/* Adds an entry as the one of its segment that was used last. used: somebody has used it since it was added first. */
void cache_queue_add(struct cache_queue *queue, struct cache_entry *entry, bool used);
void cache_queue_remove(struct cache_queue *queue, struct cache_entry *entry);

/* The next one to be evicted, which stays in the queue; NULL: the queue is empty. */
struct cache_entry *cache_queue_victim(const struct cache_queue *queue);

#endif
