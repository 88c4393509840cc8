/* SPDX-License-Identifier: Apache-2.0 */
/* Copies within a device, which this process makes itself for fetches with targets (struct rdt_copier). Until the device has
 * made the copy, the object stays held and mapped, and the targets known, also if nobody waits for it any more
 * (copying_leave). */
#ifndef CLIENT_COPYING_H
#define CLIENT_COPYING_H

#include "client/fetched.h"
#include "client/session/connection.h"
#include "client/targets.h"

struct copying;

/* With the lock, as all others that do not say otherwise: whether the object lies on a device. */
bool copying_is_needed(const rdt_object *object);

/* Creates the copy of the object into the targets, which have its shape. Both are borrowed. Errors: PROTOCOL (nothing here
 * copies so), NO_MEMORY. */
enum rdt_status copying_create(rdt_object *object, struct targets *targets, struct copying **copying_p, struct rdt_error *err);

/* Without the lock, in one thread at a time: begins the copy, or goes on with it, and waits a millisecond for its end. OK: all
 * bytes are in the targets. AGAIN: call it again. Errors: those of the device. */
enum rdt_status copying_step(struct copying *copying, struct rdt_error *err);

/* Frees a copy that goes on no more, or has not begun. */
void copying_end(struct copying *take_copying);

/* Nobody waits for the copy any more. True: it goes on, and has taken the object and the targets. False: it has ended. */
bool copying_leave(struct copying *take_copying);

/* Releases what copies that were left have held, if they have ended by now. Returns whether others go on. */
bool copying_look(rdt *conn);

/* Waits until the devices have made all copies. Nothing is released. In a forked child none goes on. */
void copying_await(rdt *conn);

#endif
