/* Large requests are unpacked by the work pool, and what a PUT's tensors come to is made there: milliseconds for which nobody but the client
 * itself waits. Its further frames do (struct client_task), so that its requests keep their order. One request is read at a time, first come,
 * first served: each may take RDT_MAX_DECODED_BYTES.
 *
 *   waits --the first of all--> the pool reads it --> handled on the loop, as if it had just come
 *     |                                 |
 *     +--- its client is gone: ---------+--> dropped, when the pool has done with it
 */
#ifndef DAEMON_RPC_READ_H
#define DAEMON_RPC_READ_H

#include "daemon/objects/object_parts.h"
#include "daemon/rpc/rpc_call.h"

/* What of a PUT needs no table of the daemon's. */
struct put_digest { /* not to be moved */
    enum rdt_status status; /* of its tensors; err says why */
    struct rdt_error err;
    struct layout *layout;
    struct object_parts parts;
};
void put_digest_make(struct put_digest *digest, const Rdt__Pb__Put *message); /* any thread */
void put_digest_fini(struct put_digest *digest);                              /* what nobody took */

/* A request as it was read, for the loop. */
struct reading {
    struct client_task task; /* its client's */
    struct work work;
    struct list link; /* in rpc->readings */
    bool runs;        /* the pool has it */
    struct call *call;
    struct frame frame; /* with its fds */
    void *buffer;       /* that has its payload; NULL: it is with who received it */
    void (*on_read)(struct reading *);
    struct arena arena;
    struct rdt_error err; /* status OK: message is there */
    ProtobufCMessage *message;
    struct put_digest digest; /* of a PUT */
};

void readings_init(struct rpc *rpc);

/* The client has a task from now on; then on_read answers the call, which has frame, arena and digest, unless the client is gone. Takes the
 * call, buffer and the frame's fds on success. NO_MEMORY. */
enum rdt_status reading_start(struct call *call, struct frame *frame, void *buffer, void (*on_read)(struct reading *),
                              struct rdt_error *err);

#endif
