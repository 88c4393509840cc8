/* SPDX-License-Identifier: Apache-2.0 */
/* The things that survive this process: objects that are detached, published under a name, or in transit, the names
 * themselves, and the sessions of clients with everything that they hold. The room that records them (daemon/persist) is
 * told of every change by these callbacks, before the client is answered. The field `record` of a thing is its record. */
#ifndef DAEMON_LASTING_H
#define DAEMON_LASTING_H

#include <stdbool.h>

#include "rdt.pb-c.h"
#include "rdt_status.h"

/* A mark of a request of a session of another node, which its repetition after a restart has, too: struct client.session.id,
 * and the number of the request. */
#define REPEAT_BYTES 24u

struct client;
struct hold;
struct name;
struct object;
struct object_put;
struct rdt_ref;
struct region;
struct remote_hold;

struct lasting {
    void *arg;
    bool ending; /* the daemon will end: the next one answers the requests that are still open */
    /* Before a put with `bytes` bytes of its own: *bytes_p is what a record of the object takes, which is charged with it.
     * LIMIT: there is no room for the record. */
    enum rdt_status (*check_put)(void *arg, const struct object_put *put, uint64_t bytes, uint64_t *bytes_p,
                                 struct rdt_error *err);
    /* A client puts the object, which is not live yet. */
    void (*on_put)(void *arg, struct object *object, const struct object_put *put);
    /* The reasons why the object survives have changed, or it no longer survives; object_lasts says which. */
    void (*on_object)(void *arg, struct object *object);
    /* It has a record, and lies in other regions now. The earlier ones end after this. */
    void (*on_object_moved)(void *arg, struct object *object);
    /* The name was published, has a new version, has lost its object, or has ended; name_lasts says whether it survives. */
    void (*on_name)(void *arg, struct name *name);

    /* Of clients whose session lasts (client->session.lasting): */
    void (*on_region)(void *arg, struct client *client, struct region *region); /* the client may name it from now on */
    void (*on_region_released)(void *arg, struct region *region);               /* and from now on not any more */
    void (*on_hold)(void *arg, struct hold *hold);
    void (*on_hold_end)(void *arg, struct hold *hold); /* it has a record */
    void (*on_remote_hold)(void *arg, struct remote_hold *hold);
    /* The hold is on an object of another node. */
    void (*on_far_hold)(void *arg, struct remote_hold *hold, const Rdt__Pb__Ref *ref);
    /* The ref that the record of such a hold has. false: it has none. */
    bool (*far_ref)(void *arg, const struct remote_hold *hold, struct rdt_ref *ref_p);
    void (*on_remote_hold_end)(void *arg, struct remote_hold *hold); /* it has a record */
    /* The request has changed the object of that generation: the next daemon must not do that again. */
    void (*on_request)(void *arg, const struct client *client, uint64_t request_id, uint64_t generation);
};

#endif
