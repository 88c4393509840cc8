/* SPDX-License-Identifier: Apache-2.0 */
/* The latest events of the daemon's tables, packed once for all who watch, and how far each watcher has got.
 *
 * An event costs the same however many watch: it is packed, counted for those who may see it, and appended. Watchers are
 * served in slices (base/slices.h), each in its turn, so many watchers delay nobody. A watcher whose client does not read
 * costs nothing. The log is short: a watcher that falls behind it continues with the next event, and learns how many it has
 * lost. Since events are counted for each audience, nobody has to look for the lost ones.
 *
 *            a new event                           its client has too many unread bytes
 *   RESTING -------------> READY (served in turn) --------------------------------------> BLOCKED (in no list)
 *      ^                     |  ^                                                            |
 *      +--- nothing is new --+  +--------------- its client has read them all ---------------+
 */
#ifndef DAEMON_CALLS_EVENT_LOG_H
#define DAEMON_CALLS_EVENT_LOG_H

#include "daemon/base/map.h"
#include "daemon/base/owner.h"
#include "daemon/base/slices.h"
#include "rdt.pb-c.h"
#include "rdt_status.h"

#define EVENT_LOG_ENTRIES 4096u /* a power of two */
#define EVENT_LOG_BYTES ((size_t)1 << 20)
#define EVENT_KINDS 9u             /* values of Rdt__Pb__ListKind */
#define EVENT_WATCHERS_PER_TURN 8u /* each may cause a write to a socket after the turn */

/* Who may see a row, besides administrators. */
enum row_visibility { ROW_OWNER, ROW_TENANT, ROW_ALL };

struct row_audience {
    enum row_visibility visibility;
    const struct owner *owner; /* NULL with ROW_ALL */
};

struct event_entry;

/* The events that some watchers may see: those of an owner, those shown to a tenant, those shown to everybody, or all. */
struct event_count {
    unsigned watchers;
    uint64_t events[EVENT_KINDS];
    uint8_t key[OWNER_KEY_MAX_BYTES]; /* in event_log.counts */
    size_t key_bytes;
};

struct event_watcher {
    struct list link; /* in event_log.ready or .resting */
    struct event_log *log;
    const struct owner *owner;
    bool admin;
    uint32_t kinds;
    uint64_t next;     /* the number of the event that it looks at next */
    uint64_t sequence; /* of the latest event that it has been sent or has lost */
    uint64_t lost;     /* since the last one that it was sent */
    uint64_t base;     /* events of its audiences before its beginning */
    struct event_count *counts[3];
    unsigned n_counts;
    bool (*has_room)(struct event_watcher *);
    /* Sends one event: `sequence` and `lost` of the watcher, and the packed rest. */
    void (*send)(struct event_watcher *, const uint8_t *rest, size_t bytes);
};

struct event_log {
    struct slices *slices; /* NULL: every event is sent at once (unit tests) */
    struct slice slice;
    struct event_entry *entries[EVENT_LOG_ENTRIES]; /* by number; NULL: it could not be packed, and everybody loses it */
    uint64_t first, next;                           /* numbers in the log: [first, next) */
    size_t bytes;
    struct list ready, resting;
    struct map counts; /* owner_key -> struct event_count; a tenant's has a uid that no user has */
    struct event_count all, shown;
    unsigned watching[EVENT_KINDS]; /* how many watch each kind */
};

void event_log_init(struct event_log *log, struct slices *slices);
void event_log_fini(struct event_log *log);

/* The set of kinds that somebody watches. */
unsigned event_log_watched(const struct event_log *log);

/* Whether anybody who watches may see such an event. If not, it need not be packed. */
bool event_log_wanted(const struct event_log *log, Rdt__Pb__ListKind kind, const struct row_audience *audience);

/* Appends an event that is wanted, without sequence and lost. NULL: there was no memory for its row. */
void event_log_add(struct event_log *log, Rdt__Pb__ListKind kind, const struct row_audience *audience,
                   const Rdt__Pb__Event *message);

/* The caller sets owner (borrowed), admin, kinds, has_room and send. It will be sent the events from now on. NO_MEMORY. */
enum rdt_status event_watcher_start(struct event_log *log, struct event_watcher *watcher, struct rdt_error *err);
void event_watcher_stop(struct event_watcher *watcher);

/* Sends what there is until about until_ns. Returns false if more is left that the client has room for. */
bool event_watcher_serve(struct event_watcher *watcher, uint64_t until_ns);

/* To be called when the client has read everything that was queued: the watcher goes on if it was blocked. */
void event_watcher_unblock(struct event_watcher *watcher);

/* Whether it is in that audience. */
bool row_audience_has(const struct row_audience *audience, const struct owner *who);

#endif
