/* Decoding of large requests on the work pool, together with the layout of a PUT's tensors: it takes milliseconds,
 * in which only this client waits. The client's next frames wait (struct client_task), so that its requests keep
 * their order. One request is decoded at a time, in order of arrival, because each may take RDT_MAX_DECODED_BYTES.
 *
 *   queued --first in the queue--> the pool decodes it --> handled on the loop, as if it had just come
 *     |                                  |
 *     +------- the client is gone -------+--> dropped, as soon as the pool has finished with it
 */
#ifndef DAEMON_RPC_READ_H
#define DAEMON_RPC_READ_H

#include "daemon/objects/object_parts.h"
#include "daemon/rpc/rpc_call.h"

/* The part of a PUT that needs no table of the daemon. The struct must not be moved. */
struct put_digest {
    enum rdt_status status; /* of its tensors; err says why */
    struct rdt_error err;
    struct layout *layout;
    struct object_parts parts;
};
void put_digest_make(struct put_digest *digest, const Rdt__Pb__Put *message); /* from any thread */
void put_digest_fini(struct put_digest *digest);                              /* frees what was not taken */

/* A large request and its decoded form. */
struct reading {
    struct client_task task; /* its client's */
    struct work work;
    struct list link; /* in rpc->readings */
    bool runs;        /* the pool is decoding it */
    struct call *call;
    struct frame frame;      /* with its fds */
    struct account *account; /* charged for them; a reference */
    unsigned n_fds;
    void *buffer; /* that contains the payload; NULL: the connection's reader contains it */
    void (*on_read)(struct reading *);
    struct arena arena;
    struct rdt_error err; /* status OK: message is valid */
    ProtobufCMessage *message;
    struct put_digest digest; /* of a PUT */
};

void readings_init(struct rpc *rpc);

/* Queues the request of `call`, and gives its client a task until it is handled. Later on_read runs on the loop,
 * unless the client is gone, and answers the call, whose frame, arena and digest are set. Takes the call, buffer
 * and the frame's fds on success only. NO_MEMORY. */
enum rdt_status reading_start(struct call *call, struct frame *frame, void *buffer, void (*on_read)(struct reading *),
                              struct rdt_error *err);

#endif
