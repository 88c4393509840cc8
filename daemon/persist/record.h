/* SPDX-License-Identifier: Apache-2.0 */
/* The record of an object and that of a name, from which a later daemon makes them again. They are the same in the journal and
 * in the files of storage_dir; rdt_persist.proto says which fields only one of the two places has.
 *
 *   struct object ── record_of_object ──► ObjectRecord ──► the journal, with the ids of the regions where the bytes are
 *                                                     └──► the header of a file that has the bytes, with their checksums
 *   struct object ◄── record_restore_object ── record_check_object ── a record that a faulty daemon may have written
 *
 * record_check_object and record_check_name use no table, so any thread may call them. */
#ifndef DAEMON_RECORD_H
#define DAEMON_RECORD_H

#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "rdt_persist.pb-c.h"

struct plugins;

/* Fills the fields that both places have, except the tensors. The record borrows from the object. */
void record_of_object(const struct object *object, Rdt__Pb__ObjectRecord *record_p);
void record_of_name(const struct name *name, Rdt__Pb__NameRecord *record_p);

/* Check everything that does not depend on the place. The layout is that of the tensors. INVALID. */
enum rdt_status record_check_object(const Rdt__Pb__ObjectRecord *record, const struct layout *layout, struct rdt_error *err);
enum rdt_status record_check_name(const Rdt__Pb__NameRecord *record, struct rdt_error *err);

/* The owner that a record names. INVALID. */
enum rdt_status record_owner(uint32_t uid, const char *tenant, struct owner *owner_p, struct rdt_error *err);

/* Its account, with a reference for the caller. NULL: err says why. */
struct account *record_account(struct accounts *accounts, uint32_t uid, const char *tenant, struct rdt_error *err);

/* Puts the object of the record again, with a hold that persist_start ends. *put has what the place knows: account, layout,
 * regions, inline bytes, promise, producer, time to live; the rest is filled here. The tensors must lie in the regions and the
 * inline bytes, which is checked. INVALID, also if no earlier daemon of this node had its generation; otherwise as
 * object_table_put. */
enum rdt_status record_restore_object(struct plugins *plugins, struct object_table *objects,
                                      const Rdt__Pb__ObjectRecord *record, struct object_put *put, struct object **object_p,
                                      struct rdt_error *err);

/* Publishes the object under the name of the record again. *publish has what the place knows: lease, session, request, time to
 * live. The name is borrowed. INVALID; otherwise as names_restore. */
enum rdt_status record_restore_name(struct names *names, const Rdt__Pb__NameRecord *record, struct object *object,
                                    struct name_publish *publish, struct name **name_p, struct rdt_error *err);

#endif
