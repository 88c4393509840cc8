/* Memory on devices, which the vendor's library maps (rdt_map_by). */
#ifndef CLIENT_DEVICE_H
#define CLIENT_DEVICE_H

#include "connection.h"
#include "rdt.pb-c.h"

/* What came with an answer to a fetch, mapped, with one reference for the caller. With the lock. */
enum rdt_status device_map_shared(rdt *conn, const Rdt__Pb__SharedRegion *shared, struct frame *frame, struct mapping **mapping_p,
                                  struct rdt_error *err);

/* The kinds that this process can map, for FETCH: at most max names, borrowed. With the lock. */
size_t device_maps(const rdt *conn, char **names_p, size_t max);

#endif
