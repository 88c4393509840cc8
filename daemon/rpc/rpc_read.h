/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of large requests on the worker pool, together with the layout of a PUT's tensors. It takes milliseconds, and only
 * this client waits meanwhile: its next frames are not handled (struct client_task), so that its requests stay in order.
 * The requests are decoded one after the other, in order of arrival, because each may need RDT_MAX_DECODED_BYTES.
 *
 *   queued --first in the queue--> the pool decodes it --> handled on the loop, as if it had just arrived
 *     |                                  |
 *     +------- the client has gone ------+--> dropped, as soon as the pool has finished with it
 */
#ifndef DAEMON_RPC_READ_H
#define DAEMON_RPC_READ_H

#include "daemon/calls/call.h"
#include "daemon/objects/object_content.h"

/* The part of a PUT that needs no table of the daemon. The struct must not be moved. */
struct put_digest {
    enum rdt_status status; /* whether the tensors are valid; err says why they are not */
    struct rdt_error err;
    struct layout *layout;
    struct object_content content;
};
void put_digest_make(struct put_digest *digest, const Rdt__Pb__Put *message); /* from any thread */
void put_digest_fini(struct put_digest *digest);                              /* frees what no object has taken */

/* A large request and its decoded form. */
struct reading {
    struct client_task task; /* of its client */
    struct work work;
    struct list link; /* in rpc->calls.readings */
    bool runs;        /* the pool is decoding it */
    struct call *call;
    struct frame frame;      /* with its fds */
    struct account *account; /* charged for the fds; a reference */
    unsigned n_fds;
    void *buffer; /* contains the payload; NULL: it is in the connection's reader */
    void (*on_read)(struct reading *);
    struct arena arena;
    struct rdt_error err; /* status RDT_OK: message is valid */
    ProtobufCMessage *message;
    struct put_digest digest; /* of a PUT */
};

void readings_init(struct rpc *rpc);

/* Queues the request of `call`, and gives its client a task until the request has been handled. Then on_read runs on the
 * loop, unless the client has gone, and answers the call, whose frame, arena and digest are set. The call, the buffer and
 * the fds of the frame are taken on success only. Error: NO_MEMORY. */
enum rdt_status reading_start(struct call *call, struct frame *frame, void *buffer, void (*on_read)(struct reading *),
                              struct rdt_error *err);

#endif
