/* SPDX-License-Identifier: Apache-2.0 */
/* Records of transfers, for rdtctl: beginning, path decision, end. */
#ifndef DAEMON_TRANSFER_RECORD_H
#define DAEMON_TRANSFER_RECORD_H

#include "daemon/transfers/transfer.h"

/* Fills in a record that is all zero. */
void record_start(struct transfer_record *record, uint64_t id, const struct owner *requester, const struct rdt_ref *ref,
                  const char *direction, const char *state);

/* Chooses the path by path_choose and keeps a reference to the decision in the record. For an object of this
 * node, the same query as last time gets the same decision without choosing. Errors: as path_choose,
 * NO_MEMORY. */
enum rdt_status record_decide(struct transfers *transfers, struct transfer_record *record, const struct path_query *query,
                              struct rdt_error *err);

/* The chosen candidate, after record_decide has succeeded. Borrowed from the record. */
const struct path_candidate *record_chosen(const struct transfer_record *record);

/* Drops a reference. NULL is fine. */
void record_drop_decision(struct path_decision *decision);

/* Notes the path of the bytes, once, in the words of the connection's transport. */
void record_route(struct transfer_record *record, const struct plugin_conn *conn);

/* Notes, once, how bytes went from one device to another of the kind, in the words of its plug-in. */
void record_devices(struct transfer_record *record, const struct memory_device *from, const struct memory_device *to);

/* The fetch leaves its source, record->peer. Without memory, `rdtctl explain` will not show it. */
void record_source_left(struct transfer_record *record, const char *why);

/* Notes why the transfer will not be done. Only the first reason counts. */
void record_fail(struct transfer_record *record, const struct rdt_error *err);

/* Notes in the trace that the transfer has entered record->state, now, or at a time (uv_hrtime) that the caller has read
 * already, because reading it costs more than the rest. */
void record_stage(struct transfers *transfers, const struct transfer_record *record);
void record_stage_at(struct transfers *transfers, const struct transfer_record *record, uint64_t at_ns);

/* Moves the record into the history as done, failed, cancelled or timed_out, and counts it. */
void record_finish(struct transfers *transfers, struct transfer_record *record);

/* Copies a slice; NULL for NULL or without memory. Free with rdt__pb__slice__free_unpacked. */
Rdt__Pb__Slice *slice_dup(const Rdt__Pb__Slice *slice);

#endif
