/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of this session: memory that the daemon allocated for it, or that it imported. */
#ifndef CLIENT_ALLOC_H
#define CLIENT_ALLOC_H

#include "client/session/connection.h"
#include "rdt.pb-c.h"

/* Allocates `bytes` of host memory at the daemon and maps them writable. The mapping is not offered by address, and has
 * one reference, the caller's, in *mapping_p. room_ns is how long the daemon may wait for room: 0 is not at all, a
 * negative time has no end. If fd_p is not NULL, *fd_p receives the region's fd, which the caller closes, or -1 if the
 * daemon sent a region whose mapping this process caches. Takes the lock. Errors: those of ALLOC, SYSTEM, NO_MEMORY,
 * PROTOCOL. */
enum rdt_status alloc_region(rdt *conn, size_t bytes, int64_t room_ns, int64_t deadline_ns, struct mapping **mapping_p,
                             int *fd_p, struct rdt_error *err);

/* With the lock: puts and fetch targets find the mapping by its address from now on. Takes the caller's reference; on an
 * error it releases the region. Forgets an import at the same address: the caller unmapped it without rdt_dealloc, and the
 * kernel has used the address again. */
enum rdt_status alloc_offer(rdt *conn, struct mapping *take_mapping, struct rdt_error *err);

/* Records and offers memory that the caller has mapped itself, and that the daemon has imported as the reply says. mapper is
 * NULL for host memory. Takes the lock. Errors: INVALID (it overlaps a known range), NO_MEMORY; then the region is released. */
enum rdt_status alloc_adopt(rdt *conn, const Rdt__Pb__RegionReply *reply, void *addr, size_t bytes, struct mapper *mapper,
                            struct rdt_error *err);

/* INVALID if some byte of [addr, addr + bytes) is in a known region. Takes the lock. */
enum rdt_status alloc_check_unknown(rdt *conn, const void *addr, size_t bytes, struct rdt_error *err);

/* With the lock: releases the region at the daemon, and drops the caller's reference when the daemon has answered.
 * Until then the answer to a fetch may still name the region as one that this process has mapped. */
void alloc_release(rdt *conn, struct mapping *take_mapping);

/* Releases a region that has no mapping here. Takes the lock. */
void alloc_release_unmapped(rdt *conn, uint64_t region);

/* With the lock: handles REGION_GONE, which names cached mappings that the daemon has dropped. */
void alloc_on_region_gone(rdt *conn, struct frame *frame);

#endif
