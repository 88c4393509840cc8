/* One object: its tensors over regions, who may see it, and what keeps it.
 *
 *                  put                     last hold dropped, or forced free
 *   AWAITED ---------------> LIVE ------------------------------------------> DRAINING ----> GONE
 *      |                      |                                                  no hold, no pin    ^
 *      |  last waiter leaves  |  last hold dropped and no pin                                       |
 *      +----------------------+---------------------------------------------------------------------+
 *
 * A hold says that somebody may still ask for it, a pin that an engine touches its memory. Memory goes at zero of both.
 */
#ifndef DAEMON_OBJECT_H
#define DAEMON_OBJECT_H

#include "daemon/list.h"
#include "daemon/owner.h"
#include "daemon/region.h"
#include "daemon/sm.h"
#include "proto/layout.h"
#include "rdt_ref.h"

struct client;
struct object_table;

enum object_state { OBJECT_AWAITED, OBJECT_LIVE, OBJECT_DRAINING, OBJECT_GONE };
enum object_end { OBJECT_END_FREED, OBJECT_END_OWNER_DIED };

struct object {
    struct object_table *table;
    struct sm sm;
    struct owner owner;
    uint8_t key[4 + 33 + 128]; /* owner and id, as the table's key */
    size_t key_bytes;
    const uint8_t *id; /* in key */
    size_t id_bytes;
    uint64_t generation; /* 0 while awaited */
    bool named;          /* in the table under its key: false after a forced free, or once gone */
    bool forced;         /* freed by force: nobody new may have it */
    enum object_end end; /* why it goes, once the producer has let go */

    struct layout *layout;   /* regions by index into uses */
    struct region_use *uses; /* [n_regions]; each also one reference to the region */
    uint32_t n_regions;
    uint8_t *metadata;
    size_t metadata_bytes;
    uint64_t bytes; /* of all tensors */
    Rdt__Pb__Visibility visibility;
    char transport[65]; /* preferred, "" none */

    struct client *producer; /* while its hold stands; NULL after free or its end */
    uint64_t producer_id;
    struct list by_producer;
    unsigned holds;      /* producer's, clients' and peers' */
    unsigned peer_holds; /* of those: by transfers to other nodes */
    unsigned pins;
    struct list holders; /* struct hold.by_object */
    bool notice_given;   /* told that it is shared while its producer may write */

    struct list waiters;       /* struct object_waiter: for live */
    struct list freed_waiters; /* struct object_waiter: for gone */
    unsigned n_waiters;
    uint64_t since_ns;
};

/* Somebody who waits for the object to become live, or to be gone. */
struct object_waiter {
    struct list link;
    struct object *object;
    struct owner requester;
    /* Called once, removed before. object: the live one; NULL for a freed waiter. */
    void (*on_event)(struct object_waiter *, struct object *object);
};

bool object_visible_to(const struct object *object, const struct owner *requester);

/* Each drops to zero what was taken; the object may be gone afterwards. */
void object_hold(struct object *object);
void object_drop(struct object *object);
void object_pin(struct object *object);
void object_unpin(struct object *object);

/* The producer lets go (free, or its end); force: nobody new may have it. */
void object_free(struct object *object, bool force, enum object_end end);

const char *object_state_name(const struct object *object);

/* All its regions belong to the requester's owner, or its tensors cover every byte of them: they may be shown whole. */
bool object_may_show(const struct object *object, const struct owner *requester, const char **why_not_p);

#endif
