/* SPDX-License-Identifier: Apache-2.0 */
/* What outlasts the sessions of clients: objects that are detached, published under a name, or in transit, and the names
 * themselves. Whoever keeps a record of them (daemon/recovery) is told of every change here. */
#ifndef DAEMON_LASTING_H
#define DAEMON_LASTING_H

struct object;
struct name;

struct lasting {
    void *arg;
    /* Something has changed in why the object lasts, or it no longer does; object_lasts says which. */
    void (*on_object)(void *arg, struct object *object);
    /* The name was published, has a new version, has lost its object, or has ended; name_lasts says which. */
    void (*on_name)(void *arg, struct name *name);
};

#endif
