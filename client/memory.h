/* Memory of this process that the daemon knows: which addresses, which region, who still uses it. Under the
 * connection's lock.
 *
 * A mapping is counted: rdt_alloc or rdt_import is one user, every fetched object that points into it another. It is
 * unmapped after the last one, outside the lock (a large munmap takes long): memory_unref only puts it aside.
 *
 * A region that the daemon may give again is parked instead: nobody uses it, it stays mapped, and when the daemon names it anew,
 * under another generation, it is there without a page fault. The daemon decides how much is kept and for how long. So it does with
 * regions of others that are mapped for reading: those stay where they are, and are found by their region as before.
 */
#ifndef CLIENT_MEMORY_H
#define CLIENT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt.h"

enum mapping_origin {
    MAPPING_ALLOCATED, /* by rdt_alloc */
    MAPPING_IMPORTED,  /* by rdt_import: the caller's own mapping, never unmapped here */
    MAPPING_FETCHED,
};

/* Maps memory of one kind that only its vendor's library can (rdt_map_by). */
struct mapper {
    struct mapper *next;
    struct rdt_mapper ops; /* memory: our copy */
    char memory[33];
};

struct copy_room;

struct mapping {
    uint64_t region, generation;
    uint8_t *addr;
    size_t bytes;
    enum mapping_origin origin;
    bool writable;
    bool cow;         /* writable, and seen by nobody else: never found by its region */
    bool offered;     /* rdt_put finds it by address */
    bool cacheable; /* may be parked, or stay */
    bool stays;       /* for reading: it stays mapped, used or not, until the daemon says that it is gone */
    char device[65];       /* uuid; "" of host memory */
    struct mapper *mapper; /* of its kind; NULL: host memory */
    void *mapped;          /* the mapper's, unless it is the caller's own */
    unsigned refs;
    struct copy_room *room; /* of loans.c: it is that one's, and never found for anybody else; else NULL */
    uint64_t mark; /* scratch of whoever numbers the regions of one message: valid if it is that message's */
    uint32_t index;
    struct mapping *next; /* with the same hash; later, of those put aside */
};

struct memory {
    struct mapping **offered; /* by address; they never overlap */
    size_t n_offered, room;
    struct mapping **buckets; /* all, by region */
    size_t n_buckets, count;
    struct mapping *aside;  /* no longer used, to be unmapped */
    struct mapping *parked; /* no longer used, and to come again */
    struct mapper *mappers; /* none is ever removed */
    uint64_t last_mark;
    uint64_t n_gones; /* how often the daemon has said that something will not come, or need not stay */
};

bool memory_init(struct memory *memory); /* false: no memory */
void memory_fini(struct memory *memory); /* unmaps everything, used or not */

/* Maps `bytes` of the fd (borrowed), with one reference for the caller, unless the region is mapped already with the
 * rights that are asked for: then that one. Does not offer it. SYSTEM, NO_MEMORY, PROTOCOL (the fd is shorter). */
enum rdt_status memory_map(struct memory *memory, uint64_t region, uint64_t generation, int fd, size_t bytes, bool writable,
                           enum mapping_origin origin, struct mapping **mapping_p, struct rdt_error *err);

/* A private, writable mapping of its own, in constant time: pages are copied when they are written. Errors as above. */
enum rdt_status memory_map_cow(struct memory *memory, uint64_t region, uint64_t generation, int fd, size_t bytes,
                               struct mapping **mapping_p, struct rdt_error *err);

/* The caller's own mapping, known from now on, with one reference. */
enum rdt_status memory_adopt(struct memory *memory, uint64_t region, uint64_t generation, void *addr, size_t bytes,
                             struct mapping **mapping_p, struct rdt_error *err);

/* The same of memory on a device. */
enum rdt_status memory_adopt_device(struct memory *memory, uint64_t region, uint64_t generation, void *addr, size_t bytes,
                                    struct mapper *mapper, const char *device, struct mapping **mapping_p, struct rdt_error *err);

/* Has the mapper map what the daemon shares, with one reference for the caller, unless the region is mapped already. */
enum rdt_status memory_map_device(struct memory *memory, uint64_t region, uint64_t generation, const struct rdt_shared *shared,
                                  enum mapping_origin origin, struct mapping **mapping_p, struct rdt_error *err);

struct mapper *memory_mapper(const struct memory *memory, const char *kind); /* any case; NULL: there is none */

/* The region, mapped for all to see with at least these rights; borrowed; NULL if there is none. */
struct mapping *memory_find(const struct memory *memory, uint64_t region, uint64_t generation, bool writable);

struct mapping *memory_find_room(const struct memory *memory, uint64_t region); /* the same of one with a room */

/* From now on memory_at finds it. INVALID if it overlaps another one. */
enum rdt_status memory_offer(struct memory *memory, struct mapping *mapping, struct rdt_error *err);
void memory_withdraw(struct memory *memory, struct mapping *mapping);

static inline bool memory_contains(const struct mapping *mapping, uintptr_t lo, uintptr_t hi)
{
    uintptr_t start = (uintptr_t)mapping->addr;

    return lo >= start && hi <= start + mapping->bytes;
}

/* An offered mapping that the range touches, the first by address, or NULL. Borrowed. */
struct mapping *memory_at(const struct memory *memory, uintptr_t lo, uintptr_t hi);

void memory_ref(struct mapping *mapping);
void memory_unref(struct memory *memory, struct mapping *mapping); /* NULL is fine */

/* With the last reference, which is gone then: the daemon is told next, by RELEASE or RELEASE_REGION with `keep`. */
bool memory_may_park(const struct mapping *mapping, enum mapping_origin origin);
void memory_park(struct memory *memory, struct mapping *mapping);

/* For reading, and to be found without a user too, as soon as the daemon is told, in `stays` of RELEASE. */
bool memory_stay(struct mapping *mapping); /* false: it may not. NULL is fine */

/* The region has come again: its mapping, with one reference for the caller. NULL: none is parked. */
struct mapping *memory_unpark(struct memory *memory, uint64_t region, uint64_t generation, enum mapping_origin origin);
bool memory_is_parked(const struct memory *memory, uint64_t region);

/* It will not come, or need not stay: put aside once nobody uses it; nothing if it is neither parked nor stays. */
void memory_drop(struct memory *memory, uint64_t region);

struct mapping *memory_take_aside(struct memory *memory);
void memory_unmap(struct mapping *aside); /* without the lock */

/* A mark for numbering the regions of one message. */
uint64_t memory_mark(struct memory *memory);

#endif
