/* SPDX-License-Identifier: Apache-2.0 */
/* One request to the daemon and its reply. Waits for the reply until a deadline; the meaning of the messages belongs to
 * the callers. rdtctl, which links librdt statically, uses it for requests that rdt.h does not offer. */
#ifndef CLIENT_CALL_H
#define CLIENT_CALL_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt.h"
#include "rdt.pb-c.h"

#define CALL_TIMEOUT_NS (INT64_C(60) * 1000000000) /* clock_default_ns of a call without bytes */

/* What ends the sentence of a time-out that the daemon has not explained. */
#define CALL_ADVICE ": it may be stopped or busy (rdtctl ping); call again, with a longer time-out if it is busy"

/* Sends the request (borrowed) and waits for its reply until timeout_ns have passed (negative: without end).
 * *reply_p, may be NULL, is to be freed by protobuf_c_message_free_unpacked(.., NULL). Errors: the daemon's own,
 * TIMED_OUT, DISCONNECTED, FORKED, LIMIT (the request is too long, or too much waits to be sent), PROTOCOL (the
 * reply cannot be decoded).
 *
 * A call that ended at its deadline leaves nothing behind: memory, objects and leases that its late reply brings are
 * released. */
enum rdt_status call(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, int64_t timeout_ns,
                     ProtobufCMessage **reply_p, struct rdt_error *err);

/* As call, with fds and a deadline on the clock of clock_now_ns. send_fd (borrowed) is sent with the request
 * unless it is -1. *fd_p, if fd_p is not NULL, receives the fd that came with the reply, the caller's, or -1. */
enum rdt_status call_fds(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, int send_fd, int64_t deadline_ns,
                         ProtobufCMessage **reply_p, int *fd_p, struct rdt_error *err);

/* As call_fds, with several fds: send_fds [n_send] is borrowed; the caller closes *got_p. */
struct call_got {
    int fds[RDT_MAX_FRAME_FDS];
    unsigned n_fds;
};
enum rdt_status call_many(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, const int *send_fds,
                          unsigned n_send, int64_t deadline_ns, ProtobufCMessage **reply_p, struct call_got *got_p,
                          struct rdt_error *err);
void call_got_close(struct call_got *got);

/* A call in two steps, between which the caller may make others: call_begin sends the request (borrowed until call_end), and
 * call_end waits for its reply, as call. The request has n_ids ids, the first of which is that of its reply. send_fds [n_send]
 * is borrowed likewise. */
struct waiting;
enum rdt_status call_begin(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, const int *send_fds,
                           unsigned n_send, unsigned n_ids, struct waiting **waiting_p, struct rdt_error *err);
enum rdt_status call_end(rdt *conn, struct waiting *take_waiting, int64_t deadline_ns, ProtobufCMessage **reply_p,
                         struct rdt_error *err);

/* Fetches the page of a list that `request` asks for, and makes it ask for the next page; request->after is 0 after the last
 * one. The caller frees *page_p by rdt__pb__list_reply__free_unpacked. Errors: those of call; PROTOCOL: the daemon named the
 * same page twice, so the list would have no end. */
enum rdt_status call_list(rdt *conn, Rdt__Pb__List *request, int64_t timeout_ns, Rdt__Pb__ListReply **page_p,
                          struct rdt_error *err);

/* Checks the connection, and whether the ref can be sent, and makes the message point into the ref. Errors: INVALID, FORKED. */
enum rdt_status call_wire_ref(const rdt *conn, const struct rdt_ref *ref, Rdt__Pb__Ref *message_p, struct rdt_error *err);

/* Frees what a call that failed has put, unless it has replaced another object. Does not wait. Takes the lock. */
void call_free_unseen(rdt *conn, const struct rdt_ref *ref);

/* Ends these leases, without waiting for the answer. With the lock. */
void call_end_leases(rdt *conn, const Rdt__Pb__LeaseEnd *request);

/* Writes any message, or a string, as JSON (info.c). The keys are the names of the fields in the .proto file, so they are as
 * stable as the wire. Every field is there, also with its default value. An absent message becomes null, an enum its name,
 * bytes become hex, a number above 2^63 - 1 a decimal string, and a byte of a string that is not UTF-8 U+FFFD. */
void message_json(FILE *out, const ProtobufCMessage *message);
void message_json_text(FILE *out, const char *text);

/* struct rdt's on.late_reply. */
void call_on_late_reply(rdt *conn, struct frame *frame);

#endif
