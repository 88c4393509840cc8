/* Regions of others that a client has mapped for reading and keeps mapped after the release of what it fetched from them. Its next fetch from there
 * needs no descriptor, mapping or page fault. The client says so by keep_mapped_regions in RELEASE. It is told by REGION_GONE when the mapping is no
 * longer useful: the region has ended, or too many are kept. When the region ends, its pages are removed at once, whoever has them mapped, since every
 * reader has released it (otherwise it was abandoned, region.h).
 *
 * A region that is listed here is mapped at the client at every point of the conversation: only the daemon ends such a mapping, REGION_GONE precedes
 * every later answer, and a client that has not read all REGION_GONE events is told again.
 *
 * Such a mapping holds neither the region nor its memory. Only memory whose pages can be removed below a mapping qualifies: memory that the daemon
 * allocated for a client and that is not sealed. All calls are made in the loop thread.
 */
#ifndef DAEMON_MAPPED_H
#define DAEMON_MAPPED_H

#include "daemon/memory/region.h"

struct mapped {       /* of one client; all zero: it keeps nothing */
    struct list list; /* struct reader.by_client, the latest last */
    struct map by_id; /* region id -> struct reader */
    void (*on_drop)(struct mapped *, uint64_t region); /* the client's mapping is of no use any more */
};

void mapped_start(struct mapped *mapped, void (*on_drop)(struct mapped *, uint64_t region));
void mapped_stop(struct mapped *mapped); /* on_drop is not called: the client is gone */

bool mapped_may_keep(const struct region *region);

/* The client says that it keeps the region mapped; heard: and knows of every on_drop. If it shall not, or there is no memory to remember
 * it: on_drop. */
void mapped_keep(struct mapped *mapped, struct region *region, bool heard);

/* The client lets go of something there, and does not say so: on_drop if it had said so before; true: so it was. */
bool mapped_drop(struct mapped *mapped, const struct region *region);

/* The client has it mapped for reading. It is one of the latest then. */
bool mapped_has(struct mapped *mapped, const struct region *region);

#endif
