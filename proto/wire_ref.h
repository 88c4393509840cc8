/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion between refs and errors of the installed API and those of the wire. */
#ifndef PROTO_WIRE_REF_H
#define PROTO_WIRE_REF_H

#include "layout.h"
#include "rdt.pb-c.h"
#include "rdt_ref.h"
#include "rdt_status.h"

/* Makes the message point into the ref, which must outlive it. */
void wire_ref_from(const struct rdt_ref *ref, Rdt__Pb__Ref *msg_p);

/* INVALID: no ref, an empty or overlong id, a node that has not 16 bytes (no node is all zeros), an
 * overlong tenant or address. */
enum rdt_status wire_ref_to(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* Writes an id or a name for lists: bytes that cannot be shown become %XX. text_p has room for three times
 * `bytes` and one byte more. */
void wire_ref_id_text(const void *id, size_t bytes, char *text_p);

/* Writes the id that an object without one of its own has; returns its length. */
#define WIRE_REF_GENERATED_BYTES 33u
size_t wire_ref_generated_id(uint64_t generation, char id_p[WIRE_REF_GENERATED_BYTES]);

/* Fills err (may be NULL) and returns its status, which is always a failure. A number that is unknown, or
 * cannot be a failure, becomes RDT_PROTOCOL with a message that names it: AGAIN would make the caller wait
 * for ever, and DISCONNECTED and FORKED are statuses of librdt only. An empty message becomes the sentence
 * of the status. */
enum rdt_status wire_error(int32_t status, int32_t sys_errno, const char *message, struct rdt_error *err);

/* ---- lists of refs as columns: thousands of refs have most of their parts in common ---- */

/* Makes a list of n refs, which must outlive it, in the arena: those with the numbers which [n], or, with NULL, the first n.
 * NO_MEMORY. */
enum rdt_status ref_list_make(struct arena *arena, const struct rdt_ref *refs, const size_t *which, size_t n,
                              Rdt__Pb__RefList **list_p, struct rdt_error *err);

/* Checks a list from elsewhere (NULL: no refs): its columns belong together, and it has at most RDT_MAX_FETCH_REFS refs.
 * INVALID, LIMIT. */
enum rdt_status ref_list_check(const Rdt__Pb__RefList *list, struct rdt_error *err);

/* Converts ref i of a checked list, whose id begins at byte `at` of list->ids. INVALID: as wire_ref_to. */
enum rdt_status ref_list_get(const Rdt__Pb__RefList *list, size_t i, size_t at, struct rdt_ref *ref_p, struct rdt_error *err);

#endif
