/* SPDX-License-Identifier: Apache-2.0 */
/* Puts that rdt.h does not offer: for rdtctl, which links librdt statically, for plan/publishing.c and many/put_many.c. */
#ifndef CLIENT_PUT_H
#define CLIENT_PUT_H

#include "proto/layout.h"
#include "session/connection.h"

/* As rdt_put of a snapshot all of whose tensors lie in take_addr, which is memory of rdt_alloc. The daemon seals that memory
 * instead of copying it, so no room for a second copy is needed. take_addr is taken, also on an error: nothing may be read or
 * written there any more. No other thread may use it during the call. options->flags has RDT_PUT_SNAPSHOT. Errors: those of
 * rdt_put; INVALID if a tensor lies elsewhere. */
enum rdt_status put_snapshot_of(rdt *conn, void *take_addr, const struct rdt_tensor *tensors, size_t count,
                                const struct rdt_put_options *options, struct rdt_ref *ref_p, struct rdt_error *err);

/* As rdt_put of a snapshot of tensors that all lie in memory of rdt_alloc, in two steps, between which the caller may begin
 * others. put_begin borrows what the options point to until put_end. AGAIN: a tensor lies elsewhere, and nothing has been
 * put. */
struct put_on_its_way;
enum rdt_status put_begin(rdt *conn, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                          struct put_on_its_way **way_p, struct rdt_error *err);
enum rdt_status put_end(struct put_on_its_way *take_way, struct rdt_ref *ref_p, struct rdt_error *err);

/* Memory of the daemon that the caller fills with tensors before it puts them as a snapshot. */
struct put_room {
    uint8_t *addr; /* [bytes]; NULL: there is none */
    uint64_t bytes;
    struct loan *loan;       /* the memory is used again when the object has ended; NULL: it becomes the snapshot, sealed */
    struct mapping *mapping; /* if there is no loan: one reference */
};

/* Takes memory for an object of that visibility. timeout_ns: how long the daemon may wait for room; 0: not at all; negative: no
 * limit. Takes the lock. Errors: LIMIT, NO_MEMORY, TIMED_OUT, and those of call. */
enum rdt_status put_room_take(rdt *conn, enum rdt_visibility visibility, uint64_t bytes, int64_t timeout_ns,
                              struct put_room *room_p, struct rdt_error *err);

/* Puts the tensors that lie in the room: the layout's offsets count from its start, and its tensors are row-major. The room is
 * taken, also on an error. options->flags is 0. Errors: those of rdt_put. */
enum rdt_status put_room_put(rdt *conn, struct put_room *take_room, const struct layout *layout,
                             const struct rdt_put_options *options, struct rdt_ref *ref_p, struct rdt_error *err);
void put_room_drop(rdt *conn, struct put_room *room); /* does nothing if it has none */

#endif
