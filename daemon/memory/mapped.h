/* Regions that a client has mapped for reading, and keeps mapped when it lets go of what it fetched from them: its next fetch from there
 * comes without fd, mapping or page fault. Its word for that is `stays` in RELEASE; it is told by REGION_GONE when the mapping is of no
 * use any more: the region ends, or too many are kept. When it ends its pages go at once, whoever has them mapped: everybody who could
 * look there has said that he does not any more (else it is abandoned, region.h).
 *
 * What is listed here is mapped there, at every moment of the conversation: only the daemon ends a mapping that stays, REGION_GONE comes
 * before every later answer, and the word of a client that has not read all of REGION_GONE yet does not count: it is told again.
 *
 * Nothing is held by it: neither the region nor its memory stays for such a mapping. Only what can be emptied under a mapping qualifies:
 * memory that the daemon allocated for a client and that is not sealed. Loop thread only.
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
