/* SPDX-License-Identifier: Apache-2.0 */
/* struct rdt_request: one fetch of one object, or one wait for it, from its start until it is destroyed. Under the
 * connection's lock.
 *
 *                    FETCH_DONE               the bytes are in the targets
 *      ┌─ RUNNING ──────────────────► ARRIVED ───────────────────┐
 *      │     only with targets that the daemon did not write     ▼
 *      └─────────────────────────────────────────────────────► ENDED
 *        completed, failed, cancelled, timed out, connection lost
 *
 * A thread copies bytes into the targets (`copying`) without the lock. A cancel may end the request meanwhile; the thread then
 * stops copying, and request_destroy waits for that. For a copy that a device makes, the thread only queues it: nobody waits
 * beside it, and a cancel or the deadline ends the request, while the copy goes on without it (copying.h). The loss of the
 * connection does not end a request that has ARRIVED.
 *
 * A wait has no object: a reply ends it, not an event, and its id is the id of its message. A hold is a wait that
 * holds an object from its successful end until it is cancelled or destroyed.
 */
#ifndef CLIENT_REQUEST_H
#define CLIENT_REQUEST_H

#include "memory/copying.h"
#include "repeat.h"
#include "session/connection.h"
#include "targets.h"

#define REQUEST_LABEL_BYTES 64

enum request_kind {
    REQUEST_FETCH,
    REQUEST_METADATA, /* a fetch of the object's metadata and layout */
    REQUEST_SLICES,   /* a fetch of slices of the object's tensors */
    /* Waits, each of which a reply ends: */
    REQUEST_WAIT,
    REQUEST_HOLD,
    REQUEST_PART, /* a publish of a part */
};

enum request_state { REQUEST_RUNNING, REQUEST_ARRIVED, REQUEST_ENDED };

struct rdt_request {
    struct rdt *conn;
    struct list link;                /* conn->requests */
    struct list arrived;             /* conn->arrived, while ARRIVED and a thread is to copy, or to queue a copy */
    struct pending pending;          /* its id is the handle; in the table while RUNNING */
    struct expiry expiry;            /* while RUNNING, and while a device copies, if it has a deadline */
    int64_t timeout_ns;              /* as the caller gave it */
    char label[REQUEST_LABEL_BYTES]; /* the ref's id, as errors show it */
    const char *what;                /* as errors name it, before the label: "fetch of"; static */
    enum request_kind kind;
    struct repeat *repeat; /* its message, which its other requests share; NULL: it is not sent again */
    uint64_t sent_on;      /* number of the socket; 0: it has not been sent yet */
    bool repeated;         /* it was sent to an earlier daemon too */
    bool holds;            /* a hold that ended well, and neither cancelled nor destroyed since */
    struct rdt_ref held;   /* the ref of the held object */
    uint64_t version;      /* when it has ended well: that it became a part of; of a hold, that of the name; 0: of no name */

    enum request_state state;
    struct rdt_error err; /* ENDED: how; with status RDT_OK it ended well */
    rdt_object *object;   /* ARRIVED, or ENDED well; NULL: the caller has taken it */

    struct targets *targets;
    struct copying *on_device; /* ARRIVED: the copy that a device makes; NULL: this process's threads copy */
    bool copying;              /* a thread copies into the targets without the lock */
    uint32_t copy_tensor;      /* the tensor that is copied next */
    uint64_t copy_from;        /* its first byte that has not been copied */
};

/* Returns status, which is also written for each of a call that failed as a whole. statuses_p [count] may be NULL. */
static inline enum rdt_status request_statuses(enum rdt_status *statuses_p, size_t count, enum rdt_status status)
{
    for (size_t i = 0; statuses_p && i < count; i++)
        statuses_p[i] = status;
    return status;
}

/* Writes the ref's id to label_p [REQUEST_LABEL_BYTES]: in quotes if it is text, else in hex. A long id is cut. */
void request_label(const struct rdt_ref *ref, char *label_p);

/* Creates a RUNNING request that is neither sent nor known to the connection. Takes the targets on success.
 * NULL: no memory. */
rdt_request *request_create(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, struct targets *take_targets);

/* Makes a created request a wait, which a reply ends. `what` is as in struct rdt_request. */
void request_make_wait(rdt_request *request, const char *what);

/* Makes a created request a hold: its reply brings the hold. */
void request_make_hold(rdt_request *request);

/* Starts a PUBLISH_PART whose name and timeout_ns are filled in here. Errors: INVALID, FORKED, NO_MEMORY, those of
 * connection_send. Takes the lock, as the next one does. */
enum rdt_status request_publish_part(rdt *conn, const struct rdt_ref *name, const Rdt__Pb__PublishPart *message,
                                     int64_t timeout_ns, rdt_request **request_p, struct rdt_error *err);

/* Sends a PUBLISH_PART that says why the rank has no part, and does not wait for the answer. */
enum rdt_status request_give_up_part(rdt *conn, const struct rdt_ref *name, const Rdt__Pb__PublishPart *message,
                                     enum rdt_status why, const char *sentence, struct rdt_error *err);

/* With the lock: handles HOLD_LOST. The hold ends with that error from then on, as a cancelled one is CANCELLED. */
void request_on_hold_lost(rdt *conn, struct frame *frame);
/* Makes a created request the publish of a part: its reply brings the version. After a restart of the daemon a whole part asks
 * for the version; what belongs to a part that grows ends with RESTARTED. */
void request_make_part(rdt_request *request, bool grows);

/* Gives the request its id and its deadline. Unless the deadline is CLOCK_NEVER, conn->expiries must have room. */
void request_start(rdt_request *request, int64_t deadline_ns);

/* Keeps the message that the request is sent with, and takes a reference to it. repeat may be NULL. */
void request_keep(rdt_request *request, struct repeat *repeat);

/* The request with this handle, RUNNING; NULL: there is none. */
rdt_request *request_find(rdt *conn, uint64_t handle);

void request_fail(rdt_request *request, const struct rdt_error *err);

/* Takes the object of a RUNNING request: ends the request, or makes it ARRIVED if the object must be copied
 * into targets. */
void request_arrive(rdt_request *request, rdt_object *take_object);

/* Copies a part of an ARRIVED request whose `copying` is false. Releases the lock meanwhile, and the request
 * may end. */
void request_copy_some(rdt_request *request);

/* Cancels the request if it runs, waits until no thread copies for it, and frees it with its object. */
void request_destroy(rdt_request *request);

/* As request_destroy, for a request that the caller of the library never saw, because the call that created it
 * failed. */
void request_undo(rdt_request *request);

/* struct rdt's on.expired. */
void request_on_expired(rdt *conn, struct expiry *expiry);

#endif
