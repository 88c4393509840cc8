/* SPDX-License-Identifier: Apache-2.0 */
/* Mappers of memory kinds (rdt_map_by). Only a vendor's library can map memory of its devices; librdt calls it through the
 * mapper that was registered for the kind. */
#ifndef CLIENT_MAPPERS_H
#define CLIENT_MAPPERS_H

#include "client/session/connection.h"
#include "rdt.pb-c.h"

/* With the lock: maps the region that `share` describes with the fds of its chunks, fds [n_fds], borrowed. *mapping_p
 * has one reference, the caller's. Errors: PROTOCOL, UNSUPPORTED (no mapper of that kind), the mapper's own. */
enum rdt_status mapper_map_share(rdt *conn, uint64_t region, uint64_t generation, uint64_t bytes, const Rdt__Pb__Share *share,
                                 const int *fds, unsigned n_fds, enum mapping_origin origin, struct mapping **mapping_p,
                                 struct rdt_error *err);

/* With the lock: writes the kinds that this process can map, at most max, to names_p (borrowed strings), for FETCH.
 * Returns their number. */
size_t mapper_kinds(const rdt *conn, char **names_p, size_t max);

/* With the lock: the same for the devices ("cuda:UUID") that the daemon has not been told yet, and that this process uses, or
 * that the fetch names by its kind of memory and device ("": none). */
size_t mapper_devices(const rdt *conn, const char *memory, const char *device, char **names_p, size_t max);
bool mapper_copies(const rdt *conn);         /* with the lock: all kinds have a copier, and there is one */
bool mapper_is_busy(const rdt *conn);        /* with the lock: one of their libraries still uses the connection */
void mapper_devices_told(const rdt *conn);   /* with the lock: a FETCH with them was sent */
void mapper_devices_untold(const rdt *conn); /* with the lock: another daemon answers now */

#endif
