/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the room share. Private to them. */
#ifndef DAEMON_DIRECTORY_IMPL_H
#define DAEMON_DIRECTORY_IMPL_H

#include "daemon/base/work.h"
#include "daemon/directory/directory.h"

#define DIRECTORY_NODES_MAX 4096u /* of one provider */

/* One reading of a source. Its run function is called on a thread, and sees nothing but this struct. */
struct directory_reading {
    struct work work;
    struct directory_provider *provider; /* loop thread only; NULL: the directory was closed, or its options have changed */
    enum rdt_status (*read)(struct directory_reading *, struct rdt_error *);
    char *argument;           /* the option's value */
    uint8_t stamp[48];        /* in: of the last good reading; out: of this one */
    bool unchanged;           /* out: the list of the last good reading is still valid */
    struct node_entry *nodes; /* out, with RDT_OK */
    struct rdt_error err;
    enum rdt_status status;
};

/* Errors: SYSTEM, INVALID (a line is wrong). */
enum rdt_status directory_read_file(struct directory_reading *reading, struct rdt_error *err);

/* Errors: NOT_FOUND (there is no such name), TIMED_OUT (no name server has answered), SYSTEM, INVALID. */
enum rdt_status directory_read_dns(struct directory_reading *reading, struct rdt_error *err);

/* ---- directory_etcd.c ---- */

void directory_etcd_begin(struct directory_provider *provider); /* with these options */
void directory_etcd_close(struct directory *directory, bool comes_back);

/* ---- directory_table.c ---- */

/* Records that a provider has succeeded, or has failed with err. */
void directory_note(struct directory_provider *provider, const struct rdt_error *err);
void directory_take(struct directory_provider *provider, struct node_entry *take_nodes); /* its new list */
void directory_merge(struct directory *directory); /* builds the table again, and gives it to peers/ */

#endif
