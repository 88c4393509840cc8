/* SPDX-License-Identifier: Apache-2.0 */
/* Copies within a device, which this process makes itself for fetches with targets (struct rdt_copier). Until the device has
 * made the copy, the object stays held and mapped, and the targets known, also if nobody waits for it any more
 * (copying_leave).
 *
 *     queued part by part ── copying_watch ──► watched ── the device has made it ──► on_end
 *      (copying_step)                             │
 *            └────────── copying_leave ───────────┴──► left ── the device has made it ──► the object is released
 */
#ifndef CLIENT_COPYING_H
#define CLIENT_COPYING_H

#include "client/fetched.h"
#include "client/session/connection.h"
#include "client/targets.h"

struct copying;

/* With the lock, as all others that do not say otherwise: whether the object lies on a device. */
bool copying_is_needed(const rdt_object *object);

/* Creates the copy of the object into the targets, which have its shape. Both are borrowed. on_end runs once for a copy that
 * copying_watch has taken, unless it was ended or left before. Errors: PROTOCOL (nothing here copies so), NO_MEMORY. */
enum rdt_status copying_create(rdt_object *object, struct targets *targets,
                               void (*on_end)(void *arg, enum rdt_status status, const struct rdt_error *why), void *arg,
                               struct copying **copying_p, struct rdt_error *err);

/* Without the lock, in one thread at a time: queues a part of the copy, and after the last part waits a moment for its end.
 * OK: all bytes are in the targets. AGAIN: ask copying_watch. Errors: those of the device. */
enum rdt_status copying_step(struct copying *copying, struct rdt_error *err);

bool copying_has_begun(const struct copying *copying); /* not while a thread is in copying_step */

/* Whether all parts are queued. Then copying_look looks after the copy, and copying_step is not called any more. False: call it
 * again. */
bool copying_watch(struct copying *copying);

/* Frees a copy that goes on no more, or has not begun. */
void copying_end(struct copying *take_copying);

/* Nobody waits for the copy any more. True: it goes on, and has taken the object and the targets. False: it has ended. */
bool copying_leave(struct copying *take_copying);

/* Calls on_end of the copies that have ended, releases what those that were left have held, and sets when to look again
 * (conn->calls.look_ns), while somebody waits. It is struct rdt's on.look. */
void copying_look(rdt *conn);

/* What devices may still write, by the holds of the copies: bytes [from, to) of regions of this session. */
struct copying_writes {
    struct id_list holds, regions, from, to;
};
bool copying_list_writes(const rdt *conn, struct copying_writes *all); /* adds to the lists. False: no memory */

bool copying_reads(const rdt_object *object); /* whether one of the copies is of this very object */

/* Waits until the devices have made all copies, and no mapper's library uses the connection, or until the deadline; returns
 * whether that is so. Nothing is released. Releases the lock meanwhile. In a forked child no copy goes on. */
bool copying_await(rdt *conn, int64_t deadline_ns);

#endif
