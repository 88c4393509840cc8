/* SPDX-License-Identifier: Apache-2.0 */
/* A client's hold that gives no access to bytes: it keeps an object, here or on another node
 * (peers/holds.h), so that it can still be fetched. The client names it by the request that took it, and
 * ends it by ending that request, whether or not it has read the answer.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_REMOTE_HOLD_H
#define DAEMON_REMOTE_HOLD_H

#include "daemon/objects/client.h"
#include "daemon/objects/object.h"

struct remote_hold {
    uint64_t request_id;
    struct client *client;
    void *record;          /* of lasting; NULL: it has none */
    struct object *object; /* NULL: it is on another node, or was freed by force */
    struct list by_object; /* in object->users->holders */
    void *far;             /* for the module that holds the object on the other node; NULL: the object is on this node */
    void (*release_far)(void *far);
    uint64_t transit_until_ns; /* it has taken a ref in transit over: as transit_until said; 0: it has not */
    enum rdt_status lost;      /* why it holds nothing any more, though its client has not ended it; RDT_OK: it holds */
};

/* Why a lost hold holds nothing. Returns hold->lost. */
enum rdt_status remote_hold_why_lost(const struct remote_hold *hold, struct rdt_error *err);

/* The hold is lost: its client is told by HOLD_LOST, now, and again by remote_holds_tell_lost if it was away. */
void remote_hold_lose(struct remote_hold *hold, const struct rdt_error *why);
void remote_holds_tell_lost(struct client *client);

/* object NULL: the caller sets far and release_far, and release_far is called when the hold ends. Errors:
 * INVALID (the request id is 0 or already names a hold), LIMIT, NO_MEMORY. */
enum rdt_status remote_hold_take(struct client *client, uint64_t request_id, struct object *object,
                                 struct remote_hold **remote_hold_p, struct rdt_error *err);
void remote_hold_end(struct remote_hold *hold);

/* NULL: the client has no such hold. */
struct remote_hold *remote_hold_find(const struct client *client, uint64_t request_id);

/* The object was freed by force: its remote holds drop it, and stay until their clients end them. The caller must hold the
 * object. Returns false if until_ns has passed: call again. */
bool remote_holds_object_freed(struct object *object, uint64_t until_ns);

#endif
