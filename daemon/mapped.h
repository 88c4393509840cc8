/* Regions that a client has mapped for reading, and keeps mapped when it lets go of what it fetched from them: its next fetch from there
 * comes without fd, mapping or page fault. Its word for that is `keep` in RELEASE; it is told by REGION_GONE when the mapping is of no
 * use any more: the region ends (its pages go at once, whoever has them mapped), or too many are kept.
 *
 * Nothing is held by it: neither the region nor its memory stays for such a mapping. Only what can be emptied under a mapping qualifies:
 * memory that the daemon allocated for a client and that is not sealed. Loop thread only.
 */
#ifndef DAEMON_MAPPED_H
#define DAEMON_MAPPED_H

#include "daemon/region.h"

struct mapped {       /* of one client; all zero: it keeps nothing */
    struct list list; /* struct reader.by_client, the latest last */
    struct map by_id; /* region id -> struct reader */
    void (*on_drop)(struct mapped *, uint64_t region); /* the client's mapping is of no use any more */
};

void mapped_start(struct mapped *mapped, void (*on_drop)(struct mapped *, uint64_t region));
void mapped_stop(struct mapped *mapped); /* on_drop is not called: the client is gone */

bool mapped_may_keep(const struct region *region);

/* The client says that it keeps the region mapped. If it shall not, or there is no memory to remember it: on_drop. */
void mapped_keep(struct mapped *mapped, struct region *region);

/* The client has it mapped for reading. It is one of the latest then. */
bool mapped_has(struct mapped *mapped, const struct region *region);

#endif
