/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan with objects that are here already (follow.c). */
#ifndef CLIENT_PLAN_H
#define CLIENT_PLAN_H

#include "client/plan/manifest.h"

/* Checks that the version of the manifest, whose parts [manifest->message->n_parts] are whole, can be written to the plan's
 * wants; of a plan with `verify`, also compares the parts with their checksums, for which it asks the daemons of the parts.
 * *planned_p: the plan was made for another layout before; plan_keep must follow when the version was written. Errors: those of
 * rdt_plan_run that are about the version's tensors. */
enum rdt_status plan_fit(rdt_plan *plan, const rdt_manifest *manifest, rdt_object *const *parts, bool *planned_p,
                         struct rdt_error *err);

/* After plan_fit: writes the wants, and adds to *bytes_p how many bytes. Only wants on devices can fail: CANCELLED while their
 * streams are waited for, then nothing is written; SYSTEM. */
enum rdt_status plan_write(rdt_plan *plan, rdt_object *const *parts, uint64_t *bytes_p, struct rdt_error *err);

/* Keeps the manifest, to compare later ones with it, and drops its hold. */
void plan_keep(rdt_plan *plan, rdt_manifest *take_manifest);

#endif
