/* A client's hold without bytes: it keeps an object so that it can be fetched, here or on another node (holds.h). Its client knows it by
 * the request that took it, and lets go by ending that request, whether it has read the answer or not. Loop thread only.
 */
#ifndef DAEMON_KEEPING_H
#define DAEMON_KEEPING_H

#include "daemon/objects/client.h"
#include "daemon/objects/object.h"

struct remote_hold {
    uint64_t request_id;
    struct client *client;
    struct object *object; /* NULL: it was freed by force, or is on another node */
    struct list by_object; /* in object->others->holders */
    void *far;             /* of who holds it there for this one; NULL: nobody */
    void (*release_far)(void *far);
};

/* object NULL: the caller sets far and release_far, which is called when it ends. INVALID (the request id is 0, or that of another), LIMIT,
 * NO_MEMORY. */
enum rdt_status remote_hold_take(struct client *client, uint64_t request_id, struct object *object, struct remote_hold **remote_hold_p,
                             struct rdt_error *err);
void remote_hold_end(struct remote_hold *keeping);

/* NULL: it has none. */
struct remote_hold *remote_hold_find(const struct client *client, uint64_t request_id);

/* The object was freed by force: nobody keeps it any more, though those who did need not know. The caller holds it. */
void remote_holds_object_freed(struct object *object);

#endif
