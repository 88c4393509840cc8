/* SPDX-License-Identifier: Apache-2.0 */
/* Sending a request again at the next daemon, with the time that is left of its time-out. Under the connection's lock. */
#ifndef CLIENT_REPEAT_H
#define CLIENT_REPEAT_H

#include "proto/verb.h"
#include "rdt.pb-c.h"
#include "session/connection.h"

struct rdt_request;

/* A message that is kept until its requests have been answered. */
struct repeat {
    unsigned refs;
    uint16_t type;    /* enum rdt_message */
    int64_t start_ns; /* when its time-out began */
    size_t bytes;
    uint8_t payload[];
};

/* Packs the message, with one reference. NULL: the session ends with its daemon, and the message is not wanted `always`, or
 * there is no memory. */
struct repeat *repeat_create(const rdt *conn, uint16_t type, const ProtobufCMessage *message, bool always);
void repeat_ref(struct repeat *repeat); /* repeat may be NULL, here and below */
void repeat_unref(struct repeat *repeat);

/* A request that was sent on socket number sent_on (0: not yet) may be sent again. Errors: RESTARTED, with a sentence. */
enum rdt_status repeat_allowed(const struct verb *verb, uint64_t sent_on, struct rdt_error *err);

/* The number of the socket on which a request is sent now; 0: it is sent later. */
static inline uint64_t repeat_socket(const rdt *conn)
{
    return conn->state == CONNECTION_UP ? conn->socket.n : 0;
}

/* Sends the message (borrowed) with fds [n_fds] (borrowed) and what is left of its timeout_ns, which began at start_ns. Errors:
 * those of connection_send_fds, SYSTEM. */
enum rdt_status repeat_message(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, int64_t start_ns,
                               const int *fds, unsigned n_fds, struct rdt_error *err);

#define REPEAT_ASK_NS (INT64_C(60) * 1000000000) /* how long the name's node, which may restart as well, is waited for */

/* The message asks for the version that the earlier daemon may have made of the part, and publishes nothing. */
void repeat_ask_for_version(Rdt__Pb__PublishPart *message);

/* Sends the kept message; again: not for the first time. Errors: as above; RESTARTED (repeat is NULL). */
enum rdt_status repeat_send(rdt *conn, const struct repeat *repeat, uint64_t id, bool again, struct rdt_error *err);

/* Sends the kept FETCH of the request with all its items that are still fetched, and sets their requests' sent_on. */
enum rdt_status repeat_fetch(rdt *conn, struct rdt_request *request, struct rdt_error *err);

/* Sends the item of the request again, for the daemon to copy the object on its device. Returns whether it could. */
bool repeat_uncopied(rdt *conn, struct rdt_request *request);

#endif
