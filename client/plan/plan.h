/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan with objects that are here already (follow.c). */
#ifndef CLIENT_PLAN_H
#define CLIENT_PLAN_H

#include "client/plan/manifest.h"

/* Checks that the version of the manifest, whose parts [manifest->message->n_parts] are whole, can be written to the plan's
 * wants; of a plan with `verify`, also compares the parts with their checksums, for which it asks the daemons of the parts.
 * *kept_p: the plan keeps the manifest from now on, to compare later ones with it; its hold is dropped. Errors: those of
 * rdt_plan_run that are about the version's tensors. */
enum rdt_status plan_fit(rdt_plan *plan, rdt_manifest *manifest, rdt_object *const *parts, bool *kept_p, struct rdt_error *err);

/* After plan_fit: writes the wants. Returns how many bytes. */
uint64_t plan_write(rdt_plan *plan, rdt_object *const *parts);

#endif
