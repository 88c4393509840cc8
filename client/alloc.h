/* Memory that the daemon gave or was offered: regions of this session. */
#ifndef CLIENT_ALLOC_H
#define CLIENT_ALLOC_H

#include "connection.h"

/* New daemon memory, mapped writable, not offered by address, with one reference for the caller. room_ns: how long the daemon may let it
 * wait for room; 0: not at all, negative: without end. fd_p, if not NULL: takes the region's fd, the caller's then; -1 if it was mapped before. */
enum rdt_status alloc_region(rdt *conn, size_t bytes, int64_t room_ns, int64_t deadline_ns, struct mapping **mapping_p,
                             int *fd_p, struct rdt_error *err);

/* With the lock: known from now on at its address; the reference is taken, also on an error, when it is given back. What the caller had
 * imported there and unmapped behind our back is forgotten. */
enum rdt_status alloc_offer(rdt *conn, struct mapping *take_mapping, struct rdt_error *err);

/* INVALID: a part of it is known already. */
enum rdt_status alloc_check_unknown(rdt *conn, const void *addr, size_t bytes, struct rdt_error *err);

/* With the lock: tells the daemon that the session no longer has the region, and drops the reference once the daemon
 * has heard it. Until then an object that is fetched may still come as "the region that you have". */
void alloc_give_back(rdt *conn, struct mapping *take_mapping);

/* device.c: the same on a device. */
enum rdt_status alloc_on_device(rdt *conn, size_t bytes, const struct rdt_alloc_options *options, int64_t deadline_ns,
                                struct mapping **mapping_p, struct rdt_error *err);

/* REGION_GONE, with the lock. */
void alloc_on_gone(rdt *conn, struct frame *frame);
/* The same of a region that is not mapped here any more. */
void alloc_release(rdt *conn, uint64_t region);

#endif
